"""`ProcessPool`: the child processes of an engine."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import TYPE_CHECKING

from stepfast._processes.attempt import ProcessAttempt

if TYPE_CHECKING:
    from stepfast._processes.child_thread import ChildThread


class ProcessPool:
    """A bounded number of threads, each with a child process that the thread starts when it needs one.

    Args:
        max_children: The maximum number of children; by default the number of processors of the machine.
    """

    def __init__(self, max_children: int | None) -> None:
        self._max_children = (os.cpu_count() or 1) if max_children is None else max_children
        self._changed = threading.Condition()
        self._waiting: deque[ProcessAttempt] = deque()
        self._running: set[ProcessAttempt] = set()
        self._threads: list[ChildThread] = []
        self._idle = 0
        self._is_closed = False

    def begin(self, attempt: ProcessAttempt) -> None:
        """Queues an attempt. The next free thread runs it, unless the pool is closed before."""
        with self._changed:
            if self._is_closed:
                return
            self._waiting.append(attempt)
            if len(self._waiting) > self._idle and len(self._threads) < self._max_children:
                self._threads.append(self._start_thread())
            self._changed.notify()

    def _start_thread(self) -> ChildThread:
        # imported late, because few programs need the modules that this one imports
        from stepfast._processes.child_thread import ChildThread

        return ChildThread(self, len(self._threads))

    def take_next(self) -> ProcessAttempt | None:
        """Waits for the next attempt that the calling thread has to run. Returns `None` when the thread has
        to end."""
        with self._changed:
            self._idle += 1
            while not self._waiting and not self._is_closed:
                self._changed.wait()
            self._idle -= 1
            if self._is_closed:
                return None
            attempt = self._waiting.popleft()
            self._running.add(attempt)
            return attempt

    def finish(self, attempt: ProcessAttempt) -> None:
        """Removes an attempt that the calling thread has finished."""
        with self._changed:
            self._running.discard(attempt)

    def close(self) -> None:
        """Kills running bodies, whose attempts get no outcome, and ends all child processes. Returns when all
        of them have ended."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            running = list(self._running)
            self._changed.notify_all()
        for attempt in running:
            attempt.abandon()
        for thread in self._threads:
            thread.join()
