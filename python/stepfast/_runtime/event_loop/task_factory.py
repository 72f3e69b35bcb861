"""The task factory that makes every task of workflow code a branch."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, cast

from stepfast import _native
from stepfast._native import Branch
from stepfast._runtime.branch import current_code
from stepfast._runtime.event_loop.asyncio_internals import is_task_order_undefined
from stepfast._runtime.event_loop.task_origin import detach_generator_close, forbid_unordered_task
from stepfast._runtime.event_loop.tasks import WorkflowTask, guard_task

if TYPE_CHECKING:
    from stepfast._runtime.engine_interface import Host

#: The argument of a task whose code begins at once.
_EAGER_START: Final[dict[str, Any]] = {"eager_start": True} if sys.version_info >= (3, 12) else {}

#: A function that creates tasks, with the parameters that event loops give to task factories.
TaskMaker = Callable[..., asyncio.Future[Any]]


class TaskFactory:
    """A task factory that makes every task of workflow code a branch.

    The program's own factory, which the program may set and get at any time, creates all other tasks.
    """

    def __init__(self, program_factory: TaskMaker | None) -> None:
        self._engine_count = 0
        self.set_program_factory(program_factory)

    def set_program_factory(self, program_factory: TaskMaker | None) -> None:
        """Sets the program's factory. This method replaces the loop's `set_task_factory` while an engine is
        open on the loop."""
        if program_factory is not None and not callable(program_factory):
            raise TypeError("task factory must be a callable or None")
        self._program_factory: TaskMaker | None = program_factory
        self._task_maker: TaskMaker = program_factory if program_factory is not None else make_task

    def get_program_factory(self) -> TaskMaker | None:
        """Returns the program's factory. This method replaces the loop's `get_task_factory` while an engine
        is open on the loop."""
        return self._program_factory

    def add_engine(self, loop: Any) -> None:
        """Adds an engine. The first engine installs this factory in the loop."""
        self._engine_count += 1
        if self._engine_count == 1:
            loop.set_task_factory(self)
            loop.set_task_factory, loop.get_task_factory = self.set_program_factory, self.get_program_factory

    def remove_engine(self, loop: Any) -> None:
        """Removes an engine. After the last engine the loop has the program's factory again."""
        self._engine_count -= 1
        if self._engine_count == 0:
            del loop.set_task_factory, loop.get_task_factory
            loop.set_task_factory(self._program_factory)

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> asyncio.Future[Any]:
        branch = current_code.get()
        if type(branch) is not Branch:
            return self._task_maker(loop, coro, **kwargs)
        if detach_generator_close(branch, coro, kwargs):
            return self._task_maker(loop, coro, **kwargs)
        if is_task_order_undefined():
            forbid_unordered_task(coro)
        child_branch = branch.fork()
        if child_branch is None:
            return self._task_maker(loop, coro, **kwargs)
        context = kwargs.get("context")
        context = copy_context() if context is None else context.copy()
        context.run(current_code.set, child_branch)
        kwargs["context"] = context
        task = self.make_branch_task(loop, child_branch.wrap_coroutine(coro), child_branch, **kwargs)
        task.add_done_callback(lambda task: finish_branch(task, child_branch))
        host: Host = child_branch.host
        if host.loop is not None:
            host.loop.add_branch_task(child_branch, task)
        return task

    def begin_execution(
        self, loop: asyncio.AbstractEventLoop, code: _native.BranchCoroutine[Any], branch: Branch, name: str
    ) -> asyncio.Future[Any]:
        """Creates the task of the first branch of an execution.

        From Python 3.12 on the code begins within this call, so that the loop has neither to schedule nor to
        register the task of code that ends at once.
        """
        if self._program_factory is not None:
            return self.make_branch_task(loop, code, branch, name=name)
        # no `cast`, which is a call for each execution
        untyped: Any = code
        return WorkflowTask(untyped, loop=loop, name=name, **_EAGER_START)

    def make_branch_task(
        self,
        loop: asyncio.AbstractEventLoop,
        code: _native.BranchCoroutine[Any],
        branch: Branch,
        **kwargs: Any,
    ) -> asyncio.Future[Any]:
        """Creates a task that runs the code of a branch."""
        if self._program_factory is None:
            # no `cast`, which is a call for each execution
            untyped: Any = code
            return WorkflowTask(untyped, loop=loop, **kwargs)
        task = self._program_factory(loop, code, **kwargs)
        guard_task(task, branch)
        return task


def make_task(loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> asyncio.Future[Any]:
    """Creates a task as an event loop without a task factory does."""
    return asyncio.Task(coro, loop=loop, **kwargs)


def finish_branch(task: asyncio.Future[Any], branch: Branch) -> None:
    """Ends a branch whose task has ended."""
    if branch.is_closing and not task.cancelled():
        # marks the exception of the unwound task as retrieved, because perhaps no other code retrieves it
        task.exception()
    branch.end()


def install_factory(loop: asyncio.AbstractEventLoop) -> TaskFactory:
    """Returns the factory of the engines on this loop, after adding one engine to it."""
    found: Any = getattr(loop.set_task_factory, "__self__", None)
    is_ours = isinstance(found, TaskFactory)
    factory: TaskFactory = (
        found if is_ours else TaskFactory(cast("TaskMaker | None", loop.get_task_factory()))
    )
    factory.add_engine(loop)
    return factory


__all__ = ["TaskFactory", "install_factory"]
