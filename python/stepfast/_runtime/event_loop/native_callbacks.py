"""What the native side, which runs the code that awaited calls have, leaves to Python: all that is rare."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from stepfast import _native
from stepfast._runtime.event_loop.tasks import cancelled, thrown
from stepfast._runtime.exceptions_here import cancellation
from stepfast._runtime.failures import failure_in_step, failure_of
from stepfast._runtime.outcomes import is_outcome
from stepfast._runtime.waiting import error_of

if TYPE_CHECKING:
    from stepfast._runtime.event_loop.loop import Loop


def failed(call: _native.Call, settings: _native.StepSettings, raised: BaseException) -> int | None:
    """The body of the call's step has raised: whose turn it is; None if that is no outcome."""
    if not is_outcome(raised):
        return None
    return call.fail(failure_in_step(settings.name, raised, settings.retry_if))


def interrupted(call: _native.Call, branch: _native.Branch | None, raised: BaseException) -> int | None:
    """What awaits the call is cancelled, or the program is to end: whose turn it is, if the call is over.

    Raises:
        Suspended: See `cancelled`.
    """
    if branch is not None and isinstance(raised, asyncio.CancelledError):
        return cancelled(call, branch)
    if branch is not None and isinstance(raised, KeyboardInterrupt | SystemExit):
        # nothing more is recorded of the code, which unwinds
        branch.put_off()
    return None


def raised(call: _native.Call, branch: _native.Branch, raised: BaseException) -> int | None:
    """The code of an execution that its caller runs has raised: whose turn it is; None if the program is to
    end."""
    if isinstance(raised, KeyboardInterrupt | SystemExit | GeneratorExit):
        branch.put_off()
        return None
    # of code that unwinds nothing counts
    if branch.is_closing:
        return call.unwound()
    branch.home.loop.raised(branch)
    return call.raised(failure_of(raised))


def ended(branch: _native.Branch, raised: BaseException) -> bool:
    """The code of an execution has raised in a task of its own. True if that ends the task, too."""
    if isinstance(raised, KeyboardInterrupt | SystemExit):
        branch.put_off()
        task = asyncio.current_task()
        assert task is not None
        # the loop says what ends it: nobody has to ask the task
        task.add_done_callback(lambda task: task.exception())
        return True
    if isinstance(raised, GeneratorExit):
        branch.put_off()
        return True
    # of code that unwinds nothing counts, be it a group of what its branches unwind with
    if not branch.is_closing:
        branch.home.loop.raised(branch)
        branch.fail(failure_of(raised))
    return False


def left(branch: _native.Branch, caller: asyncio.Task[Any] | None, unwound: BaseException | None) -> None:
    """The code of an execution has ended in its caller's task, which may have been cancelled meanwhile.

    Raises:
        asyncio.CancelledError: By somebody who meant the caller: the execution goes on.
    """
    loop: Loop = branch.home.loop
    run = branch.run
    if run in loop.guards:
        loop.guards.pop(run)()
    if run in loop.unwound:
        loop.leave(run, caller)
    if branch.stopped in (1, 2) and caller is not None and caller.cancelling():
        raise cancellation(unwound)


__all__ = ["ended", "error_of", "failed", "interrupted", "left", "raised", "thrown"]
