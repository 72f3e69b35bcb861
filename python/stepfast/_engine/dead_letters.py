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
        id: Its number among the dead letters.
        workflow_id: The workflow_id that the outbox has returned.
        workflow: The name of the workflow that it asks for.
        queue: The queue that it asks for, if it asks for one.
        reason: Why a worker has refused it, for people.
        put_at: When its transaction put it into the inbox.
        refused_at: When a worker refused it.
    """

    id: int
    workflow_id: str
    workflow: str
    queue: str | None
    reason: str
    put_at: datetime
    refused_at: datetime


def dead_letter_of(row: Any) -> DeadLetter:
    """The dead letter of a row of the engine."""
    id, workflow_id, workflow, queue, reason, put_at, refused_at = row
    return DeadLetter(id, workflow_id, workflow, queue, reason, to_datetime(put_at), to_datetime(refused_at))
