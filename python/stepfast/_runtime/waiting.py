"""Waits in this thread for native calls, and converts their states to values and exceptions."""

from __future__ import annotations

from typing import Any

from stepfast import _native
from stepfast._runtime.branch import DONE, ERROR, FAILED, PENDING, STOPPED, unwind_exception
from stepfast._runtime.failures import recorded_exception
from stepfast.errors import ResultTimeout


def wait_for_call(call: _native.Call, timeout: float | None = None, what: object = None) -> Any:
    """Waits in this thread for a call other than a step, and returns its value.

    Args:
        call: The call.
        timeout: The longest time to wait, in seconds; no limit by default.
        what: The handle whose result the call waits for. The error message names it.

    Raises:
        ResultTimeout: The call has not ended in time.
    """
    state = call.wait(timeout)
    if state == PENDING:
        raise result_timeout(what, timeout)
    if state != DONE:
        raise error_of(call, state)
    return call.take_value()


def await_or_wait(branch: _native.Branch, call: _native.Call) -> Any:
    """Returns a call of workflow code, for async code to await. In sync code waits, and returns the value."""
    return call if branch.is_on_loop else wait_for_call(call)


def result_timeout(handle: object, seconds: float | None) -> ResultTimeout:
    """Returns the exception for an execution that has not ended in time."""
    return ResultTimeout(f"{handle} has not ended within {seconds} s")


def error_of(call: _native.Call, state: int, error: BaseException | None = None) -> BaseException:
    """Returns the exception with which an unsuccessful call ends.

    Args:
        call: The call.
        state: The state code of the call: `STOPPED`, `FAILED` or `ERROR`.
        error: The exception that code has raised in this run; None if there is none. It is preferred to the
            recorded exception of the same type, because it has a traceback.
    """
    if state == STOPPED:
        return unwind_exception(call.stop_code)
    if state == FAILED:
        recorded = recorded_exception(call.failure())
        # the first run must raise the type that a replay would raise: otherwise `except` clauses would take
        # another path
        return error if error is not None and type(error) is type(recorded) else recorded
    assert state == ERROR
    try:
        call.raise_error()
    except BaseException as raised:
        # the exception of this run is preferred, because it has a traceback
        return error if error is not None and type(error) is type(raised) else raised
    raise AssertionError("the state of the call is ERROR, but the call has no error")


__all__ = ["await_or_wait", "error_of", "result_timeout", "wait_for_call"]
