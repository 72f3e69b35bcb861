"""Waiting for a call in this thread, and how a call has ended."""

from __future__ import annotations

from typing import Any

from stepfast import _native
from stepfast._runtime.branch import DONE, ERROR, FAILED, PENDING, STOPPED, unwinding
from stepfast._runtime.failures import raised_again


def wait_for_call(call: _native.Call, timeout: float | None = None, what: object = None) -> Any:
    """Waits for a call without a body, in this thread."""
    turn = call.wait(timeout)
    if turn == PENDING:
        raise TimeoutError(f"{what} has not ended within {timeout} s")
    if turn != DONE:
        raise error_of(call, turn)
    return call.value()


def error_of(call: _native.Call, turn: int, error: BaseException | None = None) -> BaseException:
    """The exception that a call which has not gone well ends with."""
    if turn == STOPPED:
        return unwinding(call.stopped)
    if turn == FAILED:
        again = raised_again(call.failure())
        # what a replay cannot raise, the first run must not: handlers would part ways
        return error if error is not None and type(error) is type(again) else again
    assert turn == ERROR
    try:
        call.raise_error()
    except BaseException as raised:
        # that of the code itself has its traceback
        return error if error is not None and type(error) is type(raised) else raised
    raise AssertionError("an error that is none")


__all__ = ["error_of", "wait_for_call"]
