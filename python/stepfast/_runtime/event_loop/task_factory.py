"""The task factory that lets every task of workflow code be a branch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, cast

from stepfast import _native
from stepfast._native import Branch
from stepfast._runtime.branch import here_var
from stepfast._runtime.event_loop.task_origin import refuse_unordered, tear_off
from stepfast._runtime.event_loop.tasks import WorkflowTask, guard

if TYPE_CHECKING:
    from stepfast._runtime.host import Host

#: Makes a task, as the loop asks its factory to.
Make = Callable[..., asyncio.Future[Any]]


class Factory:
    """Makes tasks of workflow code branches from their creation on; all others are made as the program's own
    factory makes them, which the program may set and ask for at any time."""

    def __init__(self, before: Make | None) -> None:
        self._engines = 0
        self.set(before)

    def set(self, before: Make | None) -> None:
        """Sets the program's factory: the loop's `set_task_factory` while an engine is open there."""
        if before is not None and not callable(before):
            raise TypeError("task factory must be a callable or None")
        self._before: Make | None = before
        self._make: Make = before if before is not None else made

    def get(self) -> Make | None:
        """The program's factory: the loop's `get_task_factory` while an engine is open there."""
        return self._before

    def add(self, loop: Any) -> None:
        """Another engine is open on the loop."""
        self._engines += 1
        if self._engines == 1:
            loop.set_task_factory(self)
            loop.set_task_factory, loop.get_task_factory = self.set, self.get

    def remove(self, loop: Any) -> None:
        """An engine is closed: after the last one the loop has the program's factory again."""
        self._engines -= 1
        if self._engines == 0:
            del loop.set_task_factory, loop.get_task_factory
            loop.set_task_factory(self._before)

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
        opened: Host = forked.home
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
    """The factory of the engines on this loop, chained to the program's own; one engine more uses it."""
    found: Any = getattr(loop.set_task_factory, "__self__", None)
    is_ours = isinstance(found, Factory)
    factory: Factory = found if is_ours else Factory(cast("Make | None", loop.get_task_factory()))
    factory.add(loop)
    return factory


__all__ = ["Factory", "chained"]
