"""The tasks of workflow code, and the effect of cancelling them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import FunctionType
from typing import Any

from stepfast._native import Branch, Call
from stepfast._runtime.branch import current_code, unwind_exception


class WorkflowTask(asyncio.Task[Any]):
    """A task that runs a branch of an execution.

    The execution's own code may cancel the task. If other code cancels the task, such as a program that
    cancels all tasks at its end, the execution is not cancelled. The execution continues later from its
    record.
    """

    def cancel(self, msg: Any | None = None) -> bool:
        """Requests the cancellation of the task. Releases the execution if code outside of it calls this
        method."""
        code: Any = self.get_coro()
        if code is not None:
            release_if_cancelled_outside(code.branch)
        return super().cancel(msg)


def guard_task(task: asyncio.Future[Any], branch: Branch) -> None:
    """Guards a task until its end, so that a cancellation by code outside of the execution releases the
    execution."""
    unguard = guard_caller_task(task, branch)
    task.add_done_callback(lambda _: unguard())


def guard_caller_task(task: asyncio.Future[Any], branch: Branch) -> Callable[[], None]:
    """Guards a task of any class, as `guard_task` does. Returns the function that removes the guard."""
    cancel: Callable[..., bool] = task.cancel

    def cancel_guarded(msg: Any | None = None) -> bool:
        release_if_cancelled_outside(branch)
        return cancel(msg)

    def unguard() -> None:
        del task.cancel
        if isinstance(cancel, FunctionType):
            # restores the guard of another engine, whose execution also runs in the task
            task.cancel = cancel  # type: ignore[method-assign]

    task.cancel = cancel_guarded  # type: ignore[method-assign]
    return unguard


def release_if_cancelled_outside(branch: Branch) -> None:
    """Releases the execution of a branch whose task is being cancelled, unless the execution's own code
    cancels it.

    If a caller runs the code in its own task, the execution is requeued at once. Otherwise the program most
    likely ends, so the execution is deferred.
    """
    current = current_code.get()
    if isinstance(current, tuple):
        current = current[0]
    if current is not None and current.run_id == branch.run_id:
        return
    if branch.host.loop.native.caller_task(branch.run_id) is not None:
        branch.requeue()
    else:
        branch.defer()


def requeue_if_caller_cancelled(branch: Branch) -> None:
    """Requeues the execution if its code runs in its caller's task, and that task is cancelled."""
    if not branch.is_inline or branch.run_id in branch.host.loop.caller_guards:
        # the guard of the task has handled the cancellation
        return
    task = asyncio.current_task()
    if task is not None and not isinstance(task, WorkflowTask) and task.cancelling():
        branch.requeue()


def exception_thrown(branch: Branch, raised: Any) -> None:
    """Handles an exception that is thrown into an execution's code in its caller's task. A cancellation of
    that task requeues the execution instead of cancelling it."""
    # not in the body of a step: a timeout in the body may have cancelled the task, and the body handles that
    # itself
    if isinstance(raised, asyncio.CancelledError) and not isinstance(current_code.get(), tuple):
        requeue_if_caller_cancelled(branch)


def state_after_cancellation(call: Call, branch: Branch) -> int:
    """Returns the state code of a call whose waiting code is cancelled.

    If an outcome was delivered at the same moment, the outcome is recorded, and the code gets it instead of
    the cancellation. A replay does the same.

    Raises:
        Suspended: Code outside of the execution has cancelled the task. The execution's code unwinds, and
            continues elsewhere.
    """
    requeue_if_caller_cancelled(branch)
    if branch.is_closing:
        raise unwind_exception(call.stop_code) from None
    return call.poll()


__all__ = [
    "WorkflowTask",
    "exception_thrown",
    "guard_task",
    "requeue_if_caller_cancelled",
    "state_after_cancellation",
]
