"""`ProcessPool`: the child processes of an engine."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import TYPE_CHECKING

from stepfast._processes.attempt import Attempt

if TYPE_CHECKING:
    from stepfast._processes.slot import Slot


class ProcessPool:
    """A bounded number of slots, each with a child process that is started when it is needed.

    Args:
        max_children: The maximum number of children; by default the number of processors of the machine.
    """

    def __init__(self, max_children: int | None) -> None:
        self._max_children = (os.cpu_count() or 1) if max_children is None else max_children
        self._changed = threading.Condition()
        self._waiting: deque[Attempt] = deque()
        self._running: set[Attempt] = set()
        self._slots: list[Slot] = []
        self._idle = 0
        self._is_closed = False

    def begin(self, attempt: Attempt) -> None:
        """Queues an attempt, which a slot runs when it is free; never after `close`."""
        with self._changed:
            if self._is_closed:
                return
            self._waiting.append(attempt)
            if len(self._waiting) > self._idle and len(self._slots) < self._max_children:
                self._slots.append(self._slot())
            self._changed.notify()

    def _slot(self) -> Slot:
        # imported late, because few programs need its imports
        from stepfast._processes.slot import Slot

        return Slot(self, len(self._slots))

    def take_next(self) -> Attempt | None:
        """Waits for the next attempt to run, for a slot; returns `None` at the end."""
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

    def finish(self, attempt: Attempt) -> None:
        """Removes a finished attempt, for a slot."""
        with self._changed:
            self._running.discard(attempt)

    def close(self) -> None:
        """Kills running bodies, which leave no outcome, and ends all children. Returns when all have
        ended."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            running = list(self._running)
            self._changed.notify_all()
        for attempt in running:
            attempt.abandon()
        for slot in self._slots:
            slot.join()
