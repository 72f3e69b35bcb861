"""Waits for calls in this thread, and converts their ends to values and exceptions."""

from __future__ import annotations

from typing import Any

from stepfast import _native
from stepfast._runtime.branch import DONE, ERROR, FAILED, PENDING, STOPPED, unwind_exception
from stepfast._runtime.failures import recorded_exception


def wait_for_call(call: _native.Call, timeout: float | None = None, what: object = None) -> Any:
    """Waits in this thread for a call without a body, and returns its value.

    Args:
        call: The call.
        timeout: How long to wait, in seconds; without limit by default.
        what: What has not ended, in the message of `TimeoutError`.

    Raises:
        TimeoutError: The call has not ended in time.
    """
    state = call.wait(timeout)
    if state == PENDING:
        raise TimeoutError(f"{what} has not ended within {timeout} s")
    if state != DONE:
        raise error_of(call, state)
    return call.take_value()


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


__all__ = ["error_of", "wait_for_call"]
