"""Python callbacks of the native coroutine driver, for the rare paths: errors and cancellation."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from stepfast import _native
from stepfast._runtime.code_exceptions import caller_cancellation
from stepfast._runtime.event_loop.tasks import exception_thrown, state_after_cancellation
from stepfast._runtime.exception_kinds import is_outcome
from stepfast._runtime.failures import fail_attempt, workflow_failure
from stepfast._runtime.waiting import error_of

if TYPE_CHECKING:
    from stepfast._runtime.event_loop.loop import EngineLoop


def body_raised(call: _native.Call, settings: _native.StepSettings, raised: BaseException) -> int | None:
    """Records the exception that the body of a step has raised.

    Returns:
        The call's state code; None if the exception is no outcome.
    """
    if not is_outcome(raised):
        return None
    return fail_attempt(call, settings.name, raised, settings.retry_if)


def call_interrupted(call: _native.Call, branch: _native.Branch | None, raised: BaseException) -> int | None:
    """Handles an exception that interrupts the code that awaits a call: a cancellation, or the end of the
    program.

    Returns:
        The call's state code after a cancellation; None if the code has to continue with `raised`.

    Raises:
        Suspended: See `state_after_cancellation`.
    """
    if branch is not None and isinstance(raised, asyncio.CancelledError):
        return state_after_cancellation(call, branch)
    if branch is not None and isinstance(raised, KeyboardInterrupt | SystemExit):
        # the program ends: the code unwinds, and the run records nothing more
        branch.defer()
    return None


def code_raised_in_caller(call: _native.Call, branch: _native.Branch, raised: BaseException) -> int | None:
    """Ends a run whose code has raised an exception in its caller's task.

    Returns:
        The call's state code; None if the exception ends the program.
    """
    if isinstance(raised, KeyboardInterrupt | SystemExit | GeneratorExit):
        branch.defer()
        return None
    # an exception that unwinds a stopped run is not an outcome
    if branch.is_closing:
        return call.code_unwound()
    branch.host.loop.note_raised(branch)
    return call.code_failed(workflow_failure(branch, raised))


def code_raised_in_task(branch: _native.Branch, raised: BaseException) -> bool:
    """Ends a run whose code has raised an exception in a task of its own.

    Returns:
        True if the exception ends the task, too.
    """
    if isinstance(raised, KeyboardInterrupt | SystemExit):
        branch.defer()
        task = asyncio.current_task()
        assert task is not None
        # the exception ends the loop, which reports it: marked as retrieved here, the task does not report it
        # again
        task.add_done_callback(lambda task: task.exception())
        return True
    if isinstance(raised, GeneratorExit):
        branch.defer()
        return True
    # an exception that unwinds a stopped run is not an outcome, and neither is a group of its branches'
    # exceptions
    if not branch.is_closing:
        branch.host.loop.note_raised(branch)
        branch.fail(workflow_failure(branch, raised))
    return False


def caller_finished(
    branch: _native.Branch, caller: asyncio.Task[Any] | None, unwound_with: BaseException | None
) -> None:
    """Cleans up after the code of an execution has ended in the task of a caller.

    Args:
        branch: The first branch of the execution.
        caller: The caller's task.
        unwound_with: The exception with which the code has unwound; None if the code has not unwound.

    Raises:
        asyncio.CancelledError: The caller was cancelled in the meantime. The execution continues without the
        caller.
    """
    loop: EngineLoop = branch.host.loop
    run_id = branch.run_id
    if run_id in loop.caller_guards:
        loop.caller_guards.pop(run_id)()
    if run_id in loop.unwinding_runs:
        loop.finish_unwinding(run_id, caller)
    if branch.stop_code in (1, 2) and caller is not None and caller.cancelling():
        raise caller_cancellation(unwound_with)


__all__ = [
    "body_raised",
    "call_interrupted",
    "caller_finished",
    "code_raised_in_caller",
    "code_raised_in_task",
    "error_of",
    "exception_thrown",
]
