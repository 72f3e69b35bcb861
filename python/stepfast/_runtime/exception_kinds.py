"""Distinguishes exceptions that are outcomes from exceptions that end a program or unwind code."""

from __future__ import annotations

import asyncio

from stepfast._values import RemoteError
from stepfast.errors import Cancelled, Suspended

#: Exceptions that end a program or a task, or that unwind code. None of them is an outcome.
_CONTROL_EXCEPTIONS = (
    KeyboardInterrupt,
    SystemExit,
    GeneratorExit,
    asyncio.CancelledError,
    Suspended,
    Cancelled,
)


def is_outcome(raised: BaseException) -> bool:
    """Returns whether an exception of a step body is the outcome of its attempt."""
    if isinstance(raised, Exception):
        return True
    if isinstance(raised, asyncio.CancelledError):
        # if the task is not cancelled, the body has raised the CancelledError itself, or has awaited another
        # task that was cancelled
        return not is_task_cancelled()
    return not isinstance(raised, _CONTROL_EXCEPTIONS)


def is_task_cancelled() -> bool:
    """Returns whether the running task is being cancelled."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        # no event loop runs in this thread
        return False
    return task is not None and task.cancelling() > 0


def to_recordable(raised: BaseException) -> BaseException:
    """Returns the exception to record. A `RemoteError` replaces an exception that would end the code that
    receives it."""
    if isinstance(raised, asyncio.CancelledError):
        text = str(raised) or "this code was not cancelled itself: it awaited something that was cancelled"
        return RemoteError("CancelledError", text)
    if isinstance(raised, _CONTROL_EXCEPTIONS):
        return RemoteError(type(raised).__qualname__, str(raised))
    return raised


__all__ = ["is_outcome", "is_task_cancelled", "to_recordable"]
