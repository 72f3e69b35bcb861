"""Exceptions that the code of executions handles, told apart from those of its callers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

#: Where the code of executions begins.
_entries: set[CodeType] = set()


def entry(function: F) -> F:
    """Marks a function that is the code of executions, or calls it."""
    code = getattr(function, "__code__", None)
    if code is not None:
        _entries.add(code)
    return function


def is_raised_here(raised: BaseException) -> bool:
    """True if an exception is being handled by the code of an execution that makes a durable call now; False
    if it is by whoever called that."""
    trace = raised.__traceback__
    if trace is None:
        return False
    task = asyncio.current_task() if asyncio._get_running_loop() is not None else None
    code: Any = task.get_coro() if task is not None else None
    first = getattr(code, "cr_frame", None)
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if frame is trace.tb_frame:
            return True
        if frame is first or frame.f_code in _entries:
            return False
        frame = frame.f_back
    return False


def cancellation(unwound: BaseException | None) -> asyncio.CancelledError:
    """The cancellation of a caller for which code has unwound with `unwound`: the same one, for what it was
    cancelled with tells whose it is."""
    while unwound is not None and not isinstance(unwound, asyncio.CancelledError):
        unwound = unwound.__context__
    return asyncio.CancelledError() if unwound is None else unwound
