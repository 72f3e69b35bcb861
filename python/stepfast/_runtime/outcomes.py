"""What code came to when it raised: an outcome, or nothing that counts."""

from __future__ import annotations

import asyncio

from stepfast._values import RemoteError
from stepfast.errors import Cancelled, Suspended

#: What tells a program or a task to end, and what unwinds code. None of them is an outcome.
_ENDS = (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, Suspended, Cancelled)


def is_outcome(raised: BaseException) -> bool:
    """True if the body of a step has failed with it."""
    if isinstance(raised, Exception):
        return True
    if isinstance(raised, asyncio.CancelledError):
        # code may raise that by itself, or await something that was cancelled
        return not is_cancelled()
    return not isinstance(raised, _ENDS)


def is_cancelled() -> bool:
    """True if somebody has cancelled the running task."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        # a thread
        return False
    return task is not None and task.cancelling() > 0


def recordable(raised: BaseException) -> BaseException:
    """What is recorded of an exception. One that tells to end would end whoever gets it as an outcome."""
    if isinstance(raised, asyncio.CancelledError):
        text = str(raised) or "nobody cancelled this code: it awaited something that was cancelled"
        return RemoteError("CancelledError", text)
    if isinstance(raised, _ENDS):
        return RemoteError(type(raised).__qualname__, str(raised))
    return raised


__all__ = ["is_cancelled", "is_outcome", "recordable"]
