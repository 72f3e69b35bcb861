"""The tasks of workflow code, and who may cancel them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import FunctionType
from typing import Any

from stepfast._native import Branch, Call
from stepfast._runtime.branch import here_var, unwinding


class WorkflowTask(asyncio.Task[Any]):
    """A task that runs a branch of an execution.

    Code of the execution may cancel it. Whoever else does so, such as a program that cancels all tasks before
    it ends, does not cancel the execution, which goes on from what is recorded.
    """

    def cancel(self, msg: Any | None = None) -> bool:
        """Asks that it be cancelled."""
        code: Any = self.get_coro()
        if code is not None:
            leave_from_outside(code.branch)
        return super().cancel(msg)


def guard(task: asyncio.Future[Any], branch: Branch) -> None:
    """Lets nobody outside of the execution cancel what it does in the task, which a factory has made that was
    there before ours."""
    unguard = guard_caller(task, branch)
    task.add_done_callback(lambda _: unguard())


def guard_caller(task: asyncio.Future[Any], branch: Branch) -> Callable[[], None]:
    """The same for a task of any kind: what ends that."""
    cancel: Callable[..., bool] = task.cancel

    def guarded(msg: Any | None = None) -> bool:
        leave_from_outside(branch)
        return cancel(msg)

    def unguard() -> None:
        del task.cancel
        if isinstance(cancel, FunctionType):
            # of another engine, whose execution it runs, too
            task.cancel = cancel  # type: ignore[method-assign]

    task.cancel = guarded  # type: ignore[method-assign]
    return unguard


def leave_from_outside(branch: Branch) -> None:
    """Lets the execution of the branch go on from the record, if it is not its own code that asks: at once if
    a caller runs its code. Else the program most likely ends, and it is put off."""
    here = here_var.get()
    if isinstance(here, tuple):
        here = here[0]
    if here is not None and here.run == branch.run:
        return
    if branch.home.loop.native.caller(branch.run) is not None:
        branch.hand_back()
    else:
        branch.put_off()


def hand_back_from_caller(branch: Branch) -> None:
    """Hands the execution back if its code runs in its caller's task, and that is cancelled."""
    if not branch.is_inline or branch.run in branch.home.loop.guards:
        # who has cancelled a task with a guard was asked then
        return
    task = asyncio.current_task()
    if task is not None and not isinstance(task, WorkflowTask) and task.cancelling():
        branch.hand_back()


def thrown(branch: Branch, raised: Any) -> None:
    """An exception enters code that its caller runs in a task of its own: whoever cancels that task does not
    cancel the execution."""
    # the body of a step may have asked for it, with a timeout of its own, and is asked first
    if isinstance(raised, asyncio.CancelledError) and not isinstance(here_var.get(), tuple):
        hand_back_from_caller(branch)


def cancelled(call: Call, branch: Branch) -> int:
    """Code that waits for the call is cancelled: whose turn it is. If the outcome was delivered in the same
    moment it is recorded, and a replay will see that, and no cancellation.

    Raises:
        Suspended: It is not the execution's own code that asked: the code unwinds, and goes on elsewhere.
    """
    hand_back_from_caller(branch)
    if branch.is_closing:
        raise unwinding(call.stopped) from None
    return call.poll()


__all__ = ["WorkflowTask", "cancelled", "guard", "hand_back_from_caller", "thrown"]
