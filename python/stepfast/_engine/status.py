"""The statuses of executions."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, TypeAlias

StatusText: TypeAlias = Literal[
    "scheduled", "queued", "running", "waiting", "completed", "failed", "cancelled"
]
"""The text of a status. It is accepted wherever a call takes a `Status`."""


class Status(StrEnum):
    """The status of an execution. Each one equals its text: `Status.COMPLETED == "completed"`.

    Attributes:
        SCHEDULED: It begins later: its `delay` or its `start_at` has not passed.
        QUEUED: It waits for a worker, or it is parked.
        RUNNING: A worker runs it.
        WAITING: It waits for a sleep or a child, and takes no memory.
        COMPLETED: It has ended with an output.
        FAILED: It has ended with an exception.
        CANCELLED: It was cancelled, or its time limit was reached.
    """

    SCHEDULED = "scheduled"
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


__all__ = ["Status", "StatusText"]
