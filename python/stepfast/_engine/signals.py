"""Signals that ask the program to end, from a supervisor, a deploy or a terminal.

Python handles a signal in the main thread, between two of its instructions. A main thread that waits is
interrupted only if it receives the signal itself, and while it waits already. So it waits for a socket, to
which Python writes at each signal, whichever thread receives it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import socket
import threading
from collections.abc import Callable, Generator
from types import FrameType
from typing import Final, TypeAlias

from stepfast.errors import Error, InvalidArgument

#: The signals that ask a program to end. Supervisors send SIGTERM; Ctrl-C sends SIGINT.
END_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

#: True for a signal, False for the end of the drain, an error for an engine that has ended by itself.
EndEvent: TypeAlias = bool | Error


class SignalQueue:
    """A queue of events on which the main thread waits. Signal handlers run while it waits, and may put an
    event."""

    def __init__(self, reader: socket.socket, writer: socket.socket, program_descriptor: int) -> None:
        # a signal handler may interrupt `get`: a SimpleQueue allows `put` then
        self._events: queue.SimpleQueue[EndEvent] = queue.SimpleQueue()
        self._reader, self._writer = reader, writer
        self._program_descriptor = program_descriptor

    def put(self, event: EndEvent) -> None:
        """Adds an event. Any thread may call this method."""
        self._events.put(event)
        # a full socket wakes the main thread as well, and nothing waits for a closed one
        with contextlib.suppress(OSError):
            self._writer.send(b"\0")

    def get(self) -> EndEvent:
        """Waits for the next event and removes it."""
        while True:
            with contextlib.suppress(queue.Empty):
                return self._events.get_nowait()
            numbers = self._reader.recv(4096)
            if self._program_descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.write(self._program_descriptor, numbers)


@contextlib.contextmanager
def queue_end_signals() -> Generator[SignalQueue]:
    """Makes each of the `END_SIGNALS` put True on a queue, instead of ending the program.

    Raises:
        InvalidArgument: This is not the main thread, the only one in which Python handles signals.
    """
    _check_main_thread("call drain()")
    reader, writer = socket.socketpair()
    with reader, writer, _wakeup_descriptor(writer) as program_descriptor:
        events = SignalQueue(reader, writer, program_descriptor)
        with _handle_end_signals(lambda: events.put(True)):
            yield events


@contextlib.contextmanager
def notify_loop_on_end_signals(
    loop: asyncio.AbstractEventLoop, notify: Callable[[], object]
) -> Generator[None]:
    """Makes each of the `END_SIGNALS` call a function on an event loop, instead of ending the program.

    Signal handlers that the program has added to the loop stay in place, and are called too.

    Raises:
        InvalidArgument: The loop does not run in the main thread.
    """
    _check_main_thread("await drain()")
    reader, writer = socket.socketpair()
    with reader, writer, _wakeup_descriptor(writer) as program_descriptor:
        if program_descriptor >= 0:
            # signals wake the loop already, which has handlers of the program
            signal.set_wakeup_fd(program_descriptor)
        reader.setblocking(False)
        loop.add_reader(reader, lambda: reader.recv(4096))
        try:
            with _handle_end_signals(lambda: loop.call_soon_threadsafe(notify)):
                yield
        finally:
            loop.remove_reader(reader)


def _check_main_thread(advice: str) -> None:
    if threading.current_thread() is not threading.main_thread():
        raise InvalidArgument(
            "work() was called outside of the main thread, the only one in which Python handles signals: "
            f"{advice}"
        )


@contextlib.contextmanager
def _wakeup_descriptor(writer: socket.socket) -> Generator[int]:
    """Makes Python write the number of each signal to a socket. Yields the descriptor to which it wrote
    before, or -1."""
    writer.setblocking(False)
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield before
    finally:
        last = signal.set_wakeup_fd(before)
        if last not in (writer.fileno(), before):
            # the program has set another one meanwhile
            signal.set_wakeup_fd(last)


@contextlib.contextmanager
def _handle_end_signals(notify: Callable[[], object]) -> Generator[None]:
    """Makes each of the `END_SIGNALS` call a function in the main thread."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        notify()

    before = {number: signal.signal(number, handle) for number in END_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


__all__ = ["SignalQueue", "notify_loop_on_end_signals", "queue_end_signals"]
