"""Being told to end: by a supervisor, a deploy, or somebody at a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Generator
from types import FrameType
from typing import Final

from stepfast.errors import InvalidArgument

#: What ends a program: what supervisors send, and Ctrl-C.
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def calling(tell: Callable[[], object], instead: str = "call drain()") -> Generator[None]:
    """Calls `tell` each time this program is told to end, instead of ending it.

    Raises:
        InvalidArgument: This is not the main thread, the only one that hears of signals.
    """
    if threading.current_thread() is not threading.main_thread():
        raise InvalidArgument(
            f"work() was called outside of the main thread, which alone hears of signals: {instead}"
        )

    def told(_number: int, _frame: FrameType | None) -> None:
        tell()

    before = {number: signal.signal(number, told) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def calling_on(loop: asyncio.AbstractEventLoop, tell: Callable[[], object]) -> Generator[None]:
    """The same, on an event loop. The loop's own handlers stay as they are, and are called, too.

    Raises:
        InvalidArgument: The loop does not run in the main thread.
    """
    with calling(lambda: loop.call_soon_threadsafe(tell), "await drain()"):
        yield


__all__ = ["calling", "calling_on"]
