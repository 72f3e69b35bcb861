"""`Processes`: the child processes of an engine."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import TYPE_CHECKING

from stepfast._processes.attempt import Attempt

if TYPE_CHECKING:
    from stepfast._processes.slot import Slot


class Processes:
    """A bounded number of slots, each of which has a child process of its own, made when it is needed.

    Args:
        most: Children at a time; the number of the machine's processors by default.
    """

    def __init__(self, most: int | None) -> None:
        self._most = (os.cpu_count() or 1) if most is None else most
        self._changed = threading.Condition()
        self._waiting: deque[Attempt] = deque()
        self._made: set[Attempt] = set()
        self._slots: list[Slot] = []
        self._idle = 0
        self._is_over = False

    def begin(self, attempt: Attempt) -> None:
        """Makes an attempt when a slot is free. After `close` it never is."""
        with self._changed:
            if self._is_over:
                return
            self._waiting.append(attempt)
            if len(self._waiting) > self._idle and len(self._slots) < self._most:
                self._slots.append(self._slot())
            self._changed.notify()

    def _slot(self) -> Slot:
        # few programs need what it imports
        from stepfast._processes.slot import Slot

        return Slot(self, len(self._slots))

    def next(self) -> Attempt | None:
        """For a slot: the next attempt that it is to make; `None` at the end."""
        with self._changed:
            self._idle += 1
            while not self._waiting and not self._is_over:
                self._changed.wait()
            self._idle -= 1
            if self._is_over:
                return None
            attempt = self._waiting.popleft()
            self._made.add(attempt)
            return attempt

    def forget(self, attempt: Attempt) -> None:
        """For a slot: the attempt is over."""
        with self._changed:
            self._made.discard(attempt)

    def close(self) -> None:
        """Ends all children; bodies under way are killed, and leave no outcome. Returns when all are gone."""
        with self._changed:
            self._is_over = True
            self._waiting.clear()
            made = list(self._made)
            self._changed.notify_all()
        for attempt in made:
            attempt.give_up()
        for slot in self._slots:
            slot.join()
