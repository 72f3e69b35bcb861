"""Exceptions that the code of executions handles, distinguished from those of its callers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

#: The code objects at which the code of executions begins.
_entry_codes: set[CodeType] = set()


def execution_entry(function: F) -> F:
    """Marks a function that is the code of executions, or that calls it."""
    code = getattr(function, "__code__", None)
    if code is not None:
        _entry_codes.add(code)
    return function


def is_handled_here(raised: BaseException) -> bool:
    """Returns whether the execution's own code handles an exception while it makes a durable call.

    Args:
        raised: The exception that the running thread handles.

    Returns:
        False if a caller of the execution's code handles the exception.
    """
    traceback = raised.__traceback__
    if traceback is None:
        return False
    task = asyncio.current_task() if asyncio._get_running_loop() is not None else None
    code: Any = task.get_coro() if task is not None else None
    task_frame = getattr(code, "cr_frame", None)
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if frame is traceback.tb_frame:
            return True
        if frame is task_frame or frame.f_code in _entry_codes:
            return False
        frame = frame.f_back
    return False


def caller_cancellation(unwound: BaseException | None) -> asyncio.CancelledError:
    """Returns the cancellation of the caller whose code has unwound.

    The original `CancelledError` is kept if the chain of contexts has one, because its arguments identify the
    code that cancelled.

    Args:
        unwound: The exception with which the code has unwound.
    """
    while unwound is not None and not isinstance(unwound, asyncio.CancelledError):
        unwound = unwound.__context__
    return asyncio.CancelledError() if unwound is None else unwound
