"""`BatchCounts`: the numbers of a batch's items by state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """The numbers of a batch's items by state. `submitted` is the sum of the other fields.

    Attributes:
        submitted: The number of items that are submitted so far.
        queued: The number of items that wait for a worker.
        running: The number of items that a worker runs, or that wait in a bundle of such items.
        waiting: The number of items that are suspended.
        completed: The number of items that have ended with an output.
        failed: The number of items that have ended with an exception.
        cancelled: The number of items that were cancelled.
    """

    submitted: int
    queued: int
    running: int
    waiting: int
    completed: int
    failed: int
    cancelled: int

    @property
    def ended(self) -> int:
        """The number of items that have ended, whether completed, failed or cancelled."""
        return self.completed + self.failed + self.cancelled


__all__ = ["BatchCounts"]
