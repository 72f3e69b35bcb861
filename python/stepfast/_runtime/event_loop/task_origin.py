"""Handles special tasks of workflow code: unordered tasks, closes of async generators, dropped tasks."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, cast

from stepfast import _native
from stepfast._runtime.branch import current_code
from stepfast._runtime.caller_warnings import warn_of_function
from stepfast._runtime.event_loop.asyncio_internals import ACLOSE_TYPE, code_of
from stepfast.errors import InvalidArgument, Suspended

if TYPE_CHECKING:
    from stepfast._native import Branch
    from stepfast._runtime.engine_interface import Host


#: The stop code of a branch whose workflow has returned.
_STOPPED_BY_RETURN: Final = 3

#: Names of coroutine functions that make a durable call. Such a call gets its number when the function is
#: called, not when a task of it is created. These texts must equal the names of the functions.
NUMBERED_COROUTINES: Final = frozenset({"await_process_step"})


def forbid_unordered_task(coro: Any) -> None:
    """Rejects a task whose creation order is undefined, unless its durable call already has a number. See
    `is_task_order_undefined`.

    Args:
        coro: The coroutine of the task.

    Raises:
        InvalidArgument: A replay may create the tasks in another order.
    """
    if type(coro) is _native.Call:
        return
    code = code_of(coro)
    if code is not None and code.co_name in NUMBERED_COROUTINES and "stepfast" in code.co_filename:
        return
    raise InvalidArgument(
        "asyncio.as_completed makes tasks of coroutines in the order of a set, which no replay can repeat: "
        "give it tasks (asyncio.create_task), in a list"
    )


def detach_generator_close(branch: Branch, coro: Any, kwargs: dict[str, Any]) -> bool:
    """Detaches a task that closes an abandoned async generator from the run of its branch.

    The garbage collector may cause such a task at any time, perhaps while another execution runs. So the code
    of the generator belongs to no branch, and may make no durable call.

    Args:
        branch: The branch whose code was running when the task was created.
        coro: The coroutine of the task.
        kwargs: The arguments of the task factory by name. A detached task gets another `context` in them.

    Returns:
        True if the task closes an async generator.
    """
    if type(coro) is not ACLOSE_TYPE:
        return False
    context = copy_context()
    context.run(current_code.set, branch.detached_from_run())
    kwargs["context"] = context
    return True


class DroppedTasks:
    """The names of tasks that were dropped because their workflow had returned. They are collected by run id
    until all tasks of the run have ended."""

    def __init__(self) -> None:
        self._names: dict[int, list[str]] = {}
        #: Ids of runs whose code has raised an exception. The tasks of such a run are abandoned without a
        #: warning.
        self._raised_runs: set[int] = set()
        #: Tasks that unwind, and that no other code had cancelled before.
        self._unwinding: set[asyncio.Future[Any]] = set()

    def note_raised(self, run_id: int) -> None:
        """Notes that the code of a run with tasks has raised an exception."""
        self._raised_runs.add(run_id)

    def note_unwinding(self, task: asyncio.Future[Any]) -> None:
        """Notes that the caller is about to cancel a task because its run has ended."""
        if not cast("Any", task).cancelling():
            self._unwinding.add(task)

    def task_ended(self, branch: Branch, task: asyncio.Future[Any]) -> None:
        """Notes the end of a task. If the workflow had returned while this task was still running, also notes
        the task's name for `warn_of_dropped`."""
        was_cancelled = task not in self._unwinding and cast("Any", task).cancelling()
        self._unwinding.discard(task)
        if branch.stop_code != _STOPPED_BY_RETURN or branch.run_id in self._raised_runs or was_cancelled:
            return
        if task.cancelled() or isinstance(task.exception(), Suspended):
            name = f"{cast('Any', task).get_name()!r} ({_describe(task)})"
            self._names.setdefault(branch.run_id, []).append(name)

    def warn_of_dropped(self, branch: Branch) -> None:
        """Warns of the dropped tasks of a run. Called after all tasks of the run have ended."""
        self._raised_runs.discard(branch.run_id)
        names = self._names.pop(branch.run_id, None)
        if names is not None:
            host: Host = branch.host
            functions = (each.function for each in host.workflows if each.name == branch.workflow)
            warn_of_function(
                f"workflow {branch.workflow!r} (workflow_id {branch.workflow_id!r}) returned before tasks "
                f"that it had created, which are dropped: {', '.join(sorted(names))}; await them in the "
                "workflow",
                next(functions, None),
            )


def _describe(task: Any) -> str:
    code: Any = task.get_coro()
    coroutine: Any = cast("Any", code).coroutine if type(code) is _native.BranchCoroutine else code
    if type(coroutine) is _native.Call:
        return f"the call at position {coroutine.path}" if coroutine.path else "a call"
    return str(getattr(coroutine, "__qualname__", coroutine))


__all__ = ["DroppedTasks", "detach_generator_close", "forbid_unordered_task"]
