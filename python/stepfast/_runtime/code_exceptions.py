"""Exceptions that the code of executions handles, as opposed to exceptions that its callers handle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

from stepfast._runtime.event_loop.asyncio_internals import current_loop, function_code, is_calling

F = TypeVar("F", bound=Callable[..., Any])

#: The code objects of the functions at which the code of executions begins.
_entry_codes: set[CodeType] = set()


def execution_entry(function: F) -> F:
    """Marks a function that is the code of executions, or that calls this code."""
    code = function_code(function)
    if code is not None:
        _entry_codes.add(code)
    return function


def is_handled_here(raised: BaseException) -> bool:
    """Returns whether the code of an execution handles an exception at the moment at which it makes a durable
    call.

    Args:
        raised: The exception that the running thread handles.

    Returns:
        False if not this code but one of its callers handles the exception.
    """
    traceback = raised.__traceback__
    if traceback is None:
        return False
    task = asyncio.current_task() if current_loop() is not None else None
    return is_calling(traceback.tb_frame, task, _entry_codes)


def caller_cancellation(unwound: BaseException | None) -> asyncio.CancelledError:
    """Returns the `CancelledError` to raise in a cancelled caller, after the execution's code in its task has
    unwound.

    This is the original `CancelledError` if the chain of contexts has one, because its arguments identify the
    code that cancelled the caller.

    Args:
        unwound: The exception with which the code has unwound; None if there is none.
    """
    while unwound is not None and not isinstance(unwound, asyncio.CancelledError):
        unwound = unwound.__context__
    return asyncio.CancelledError() if unwound is None else unwound
