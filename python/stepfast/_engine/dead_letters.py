"""Starts of outboxes that could not become executions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from stepfast._validation.times import to_datetime


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A start of an outbox that could not become an execution. Its row is kept in the table `dead_letters`.

    Attributes:
        id: The number of the dead letter.
        workflow_id: The workflow_id that `start` of the outbox has returned.
        workflow: The name of the requested workflow.
        queue: The requested queue; `None` for no queue.
        reason: The reason for the rejection, as text.
        put_at: The time at which the caller's transaction inserted the row of the start into the inbox.
        rejected_at: The time at which a worker rejected the start.
    """

    id: int
    workflow_id: str
    workflow: str
    queue: str | None
    reason: str
    put_at: datetime
    rejected_at: datetime

    @classmethod
    def __stepfast_upgrade__(cls, fields: dict[str, Any]) -> dict[str, Any]:
        # earlier programs have recorded `rejected_at` as `refused_at`
        return {"rejected_at" if name == "refused_at" else name: value for name, value in fields.items()}


def dead_letters(rows: Any) -> list[DeadLetter]:
    """Converts rows of the native engine to dead letters."""
    return [
        DeadLetter(id, workflow_id, workflow, queue, reason, to_datetime(put_at), to_datetime(rejected_at))
        for id, workflow_id, workflow, queue, reason, put_at, rejected_at in rows
    ]


__all__ = ["DeadLetter"]
