"""Signals that ask the program to end, from a supervisor, a deploy or a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Generator
from types import FrameType
from typing import Final

from stepfast.errors import InvalidArgument

#: The signals that ask a program to end. Supervisors send SIGTERM; Ctrl-C sends SIGINT.
END_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def notify_on_end_signals(notify: Callable[[], object], advice: str = "call drain()") -> Generator[None]:
    """Makes each of the `END_SIGNALS` call a function, instead of ending the program.

    Args:
        notify: The function. A signal handler calls it in the main thread.
        advice: The advice of the error message to callers outside of the main thread.

    Raises:
        InvalidArgument: This is not the main thread, the only one in which Python handles signals.
    """
    if threading.current_thread() is not threading.main_thread():
        raise InvalidArgument(
            "work() was called outside of the main thread, the only one in which Python handles signals: "
            f"{advice}"
        )

    def handle(_number: int, _frame: FrameType | None) -> None:
        notify()

    before = {number: signal.signal(number, handle) for number in END_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def notify_loop_on_end_signals(
    loop: asyncio.AbstractEventLoop, notify: Callable[[], object]
) -> Generator[None]:
    """Makes each of the `END_SIGNALS` call a function on an event loop, instead of ending the program.

    Signal handlers that the program has added to the loop stay in place, and are called too.

    Raises:
        InvalidArgument: The loop does not run in the main thread.
    """
    with notify_on_end_signals(lambda: loop.call_soon_threadsafe(notify), "await drain()"):
        yield


__all__ = ["notify_loop_on_end_signals", "notify_on_end_signals"]
