"""Waits for calls in this thread, and converts their ends to values and exceptions."""

from __future__ import annotations

from typing import Any

from stepfast import _native
from stepfast._runtime.branch import DONE, ERROR, FAILED, PENDING, STOPPED, unwind_exception
from stepfast._runtime.failures import recorded_exception
from stepfast.errors import ResultTimeout


def wait_for_call(call: _native.Call, timeout: float | None = None, what: object = None) -> Any:
    """Waits in this thread for a call without a body, and returns its value.

    Args:
        call: The call.
        timeout: How long to wait, in seconds; without limit by default.
        what: The handle whose result the call is, for the message.

    Raises:
        ResultTimeout: The call has not ended in time.
    """
    state = call.wait(timeout)
    if state == PENDING:
        raise result_timeout(what, timeout)
    if state != DONE:
        raise error_of(call, state)
    return call.take_value()


def result_timeout(handle: object, seconds: float | None) -> ResultTimeout:
    """Returns the exception for a result that has not come in time."""
    return ResultTimeout(f"{handle} has not ended within {seconds} s")


def error_of(call: _native.Call, state: int, error: BaseException | None = None) -> BaseException:
    """Returns the exception with which an unsuccessful call ends.

    Args:
        call: The call.
        state: Its state code: `STOPPED`, `FAILED` or `ERROR`.
        error: The exception that the body has raised here, if it did. It is preferred to the recorded one,
            because it has a traceback.
    """
    if state == STOPPED:
        return unwind_exception(call.stop_code)
    if state == FAILED:
        recorded = recorded_exception(call.failure())
        # the first run must raise what a replay would raise: handlers would take another path otherwise
        return error if error is not None and type(error) is type(recorded) else recorded
    assert state == ERROR
    try:
        call.raise_error()
    except BaseException as raised:
        # the exception of the code itself has its traceback
        return error if error is not None and type(error) is type(raised) else raised
    raise AssertionError("an error that is none")


__all__ = ["error_of", "result_timeout", "wait_for_call"]
