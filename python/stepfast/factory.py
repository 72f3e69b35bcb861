"""The task factory that lets every task of workflow code be a branch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, cast

from stepfast import _native
from stepfast._native import Branch
from stepfast.branch import here_var
from stepfast.left import refuse_unordered, tear_off
from stepfast.task import WorkflowTask, guard

if TYPE_CHECKING:
    from stepfast.opened import Opened

#: Makes a task, as the loop asks its factory to.
Make = Callable[..., asyncio.Future[Any]]


class Factory:
    """Makes tasks of workflow code branches from their creation on; all others are made as before."""

    def __init__(self, before: Make | None) -> None:
        self._before: Final = before
        self._make: Final = before if before is not None else made

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> asyncio.Future[Any]:
        branch = here_var.get()
        if type(branch) is not Branch:
            return self._make(loop, coro, **kwargs)
        if tear_off(branch, coro, kwargs):
            return self._make(loop, coro, **kwargs)
        refuse_unordered(coro)
        forked = branch.fork()
        if forked is None:
            return self._make(loop, coro, **kwargs)
        context = kwargs.get("context")
        context = copy_context() if context is None else context.copy()
        context.run(here_var.set, forked)
        kwargs["context"] = context
        task = self.task(loop, forked.code(coro), forked, **kwargs)
        task.add_done_callback(lambda task: ended(task, forked))
        opened: Opened = forked.home
        if opened.loop is not None:
            opened.loop.keep(forked, task)
        return task

    def task(
        self, loop: asyncio.AbstractEventLoop, code: _native.Code[Any], branch: Branch, **kwargs: Any
    ) -> asyncio.Future[Any]:
        """A task that runs code of a branch."""
        if self._before is None:
            return WorkflowTask(cast("Any", code), loop=loop, **kwargs)
        task = self._before(loop, code, **kwargs)
        guard(task, branch)
        return task


def made(loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> asyncio.Future[Any]:
    """A task as the loop makes it without a factory."""
    return asyncio.Task(coro, loop=loop, **kwargs)


def ended(task: asyncio.Future[Any], branch: Branch) -> None:
    """The task of a branch has ended."""
    if branch.is_closing and not task.cancelled():
        # nobody may be there to look at what it has unwound with
        task.exception()
    branch.end()


def chained(loop: asyncio.AbstractEventLoop) -> Factory:
    """The loop's factory: chained to the one that was there, if it was not ours."""
    before = cast("Make | None", loop.get_task_factory())
    if isinstance(before, Factory):
        return before
    factory = Factory(before)
    loop.set_task_factory(cast("Any", factory))
    return factory


__all__ = ["Factory", "chained"]
