"""What the code of workflows and steps came to when it raised."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from stepfast.errors import Cancelled, Suspended
from stepfast.values import RemoteError

if TYPE_CHECKING:
    from stepfast._native import Branch

#: What tells a program, a task or a thread to end. As an outcome it would end whoever gets it.
_ENDS = (KeyboardInterrupt, SystemExit, GeneratorExit, Suspended, Cancelled)


def is_interruption(raised: BaseException) -> bool:
    """True if it is not the code that fails: the program is told to end, or the code is cut off."""
    if isinstance(raised, (KeyboardInterrupt, SystemExit)):
        # signals raise in the main thread
        return threading.current_thread() is threading.main_thread()
    return isinstance(raised, GeneratorExit)


def is_cancelled(raised: BaseException) -> bool:
    """True if somebody has cancelled the running task; code may also raise that by itself."""
    if not isinstance(raised, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def has_failed(branch: Branch, raised: BaseException) -> bool:
    """True if what left the code of an execution is its outcome.

    False if the code was unwinding: then nothing counts. Hands the execution back, and raises it again, if it
    is no matter of the code.
    """
    if is_interruption(raised):
        branch.hand_back()
        raise raised
    return not branch.is_closing


def recordable(raised: BaseException) -> BaseException:
    """What is recorded of an exception."""
    if isinstance(raised, asyncio.CancelledError):
        text = str(raised) or "nobody cancelled this code: it awaited something that was cancelled"
        return RemoteError("CancelledError", text)
    if isinstance(raised, _ENDS):
        return RemoteError(type(raised).__qualname__, str(raised))
    return raised


__all__ = ["has_failed", "is_cancelled", "is_interruption", "recordable"]
