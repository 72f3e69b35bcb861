"""The statuses of executions."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, TypeAlias

StatusText: TypeAlias = Literal[
    "scheduled", "queued", "running", "waiting", "completed", "failed", "cancelled"
]
"""The text of a status. All calls that take a `Status` also accept its text."""


class Status(StrEnum):
    """The status of an execution. Each status equals its text: `Status.COMPLETED == "completed"`.

    Attributes:
        SCHEDULED: The execution begins later: its `delay` or its `start_at` has not passed.
        QUEUED: The execution waits for a worker, or is parked.
        RUNNING: A worker runs the execution.
        WAITING: The execution waits for a sleep or a child, and takes no memory.
        COMPLETED: The execution has ended with an output.
        FAILED: The execution has ended with an exception.
        CANCELLED: The execution was cancelled, or its time limit was reached.
    """

    SCHEDULED = "scheduled"
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


__all__ = ["Status", "StatusText"]
