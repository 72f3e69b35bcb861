"""What is recorded of executions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast

from stepfast._runtime.failures import recorded_exception
from stepfast._validation.times import to_datetime, to_datetime_or_none
from stepfast._values import DecodeError, decode


@dataclass(frozen=True, slots=True)
class Execution:
    """An execution, as lists show it.

    Attributes:
        workflow_id: Its workflow_id.
        workflow: The name of its workflow.
        status: scheduled, queued, running, waiting, completed, failed or cancelled.
        is_parked: True if it goes on only when somebody resumes it.
        parent: The key of the parent, for a child. A key is taken wherever a workflow_id is.
        run_no: How often it was resumed, plus one.
        recoveries: How often it was continued after its worker was lost.
        created_at: When its start was called, by the database's clock; it is durable somewhat later.
        ended_at: When it ended.
        deadline_at: When it is cancelled unless it has ended.
        wake_at: When the earliest of its sleeps is over, while it waits.
        app_version: The version of the code that it is pinned to.
        queue: The queue that it was put into, if it was put into one.
        key: Its key within the queue, if it has one.
        priority: Smaller comes first among those of its queue and key; 0 unless it was told another.
        dedup_id: What it alone has in its queue; None once it has ended.
        debounce: What the starts have in common that it is debounced by; None once it is due.
        run_timeout: So many seconds after it begins it is cancelled unless it has ended; None once it has
            begun.
        attributes: Names with values that it is found by.
    """

    workflow_id: str
    workflow: str
    status: str
    is_parked: bool
    parent: str | None
    run_no: int
    recoveries: int
    created_at: datetime
    ended_at: datetime | None
    deadline_at: datetime | None
    wake_at: datetime | None
    app_version: str | None
    queue: str | None
    key: str | None
    priority: int
    dedup_id: str | None
    debounce: str | None
    run_timeout: float | None
    attributes: dict[str, str]

    @property
    def took(self) -> timedelta | None:
        """From the call of its start to its end."""
        return None if self.ended_at is None else self.ended_at - self.created_at


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A recorded outcome.

    Attributes:
        path: Its position in the execution, such as `3` or `2.1`.
        name: The name of the step, or of the child's workflow; `sleep`.
        kind: step, failed (a step's error), abandoned (nobody waited for it any more), sleep, child (that
            ended; the value is its key) or started (a child that was; the value is its key).
        value: The value of a step, the exception of a failed one. A `DecodeError` if this program cannot
            read it.
        recorded_at: When it was delivered.
        took: From the call to its delivery.
    """

    path: str
    name: str
    kind: str
    value: Any
    recorded_at: datetime
    took: timedelta


@dataclass(frozen=True, slots=True)
class Attempt:
    """A failed attempt of a step.

    Attributes:
        path: The position of the step.
        number: Number of the attempt, from 1.
        error: What it failed with.
        failed_at: When.
    """

    path: str
    number: int
    error: BaseException
    failed_at: datetime


@dataclass(frozen=True, slots=True)
class Record:
    """Everything recorded of an execution.

    Attributes:
        execution: The execution itself.
        args: Arguments of its workflow by position; a `DecodeError` stands for what cannot be read.
        kwargs: Arguments by name.
        output: Its output, once it has completed.
        error: What it failed with, why it was cancelled, or why it is parked.
        checkpoints: The recorded outcomes, in the order in which they were delivered.
        attempts: Failed attempts of steps.
    """

    execution: Execution
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    output: Any = None
    error: BaseException | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    attempts: tuple[Attempt, ...] = ()

    def __rich_repr__(self) -> Iterator[Any]:
        yield self.execution
        yield "args", self.args, ()
        yield "kwargs", self.kwargs, {}
        yield "output", self.output, None
        yield "error", self.error, None
        yield "checkpoints", list(self.checkpoints), []
        yield "attempts", list(self.attempts), []


def execution_of(row: Any) -> Execution:
    """The execution of a row of the engine."""
    (workflow_id, workflow, status, is_parked, parent, run_no, recoveries, *rest) = row
    (
        created_at,
        ended_at,
        deadline_at,
        wake_at,
        (app_version, (queue, key, priority, dedup_id, debounce, run_timeout), attributes),
    ) = rest
    return Execution(
        workflow_id=workflow_id,
        workflow=workflow,
        status=status,
        is_parked=is_parked,
        parent=parent,
        run_no=run_no,
        recoveries=recoveries,
        created_at=to_datetime(created_at),
        ended_at=to_datetime_or_none(ended_at),
        deadline_at=to_datetime_or_none(deadline_at),
        wake_at=to_datetime_or_none(wake_at),
        app_version=app_version,
        queue=queue,
        key=key,
        priority=priority,
        dedup_id=dedup_id,
        debounce=debounce,
        run_timeout=run_timeout,
        attributes=attributes,
    )


def record_of(shown: Any) -> Record:
    """The record of what the engine shows."""
    row, arguments, outcome, checkpoints, attempts = shown
    execution = execution_of(row)
    args, kwargs = arguments_of(readable(arguments))
    value = readable(outcome)
    is_output = execution.status == "completed"
    return Record(
        execution,
        args,
        kwargs,
        output=value if is_output else None,
        error=None if is_output else value,
        checkpoints=tuple(
            Checkpoint(path, name, kind, readable(value), to_datetime(at), timedelta(milliseconds=took))
            for path, name, kind, value, at, took in checkpoints
        ),
        attempts=tuple(
            Attempt(path, number, readable(failure), to_datetime(at))
            for path, number, failure, at in attempts
        ),
    )


def arguments_of(read: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments by position and by name; what is no list of both stands for the first."""
    both = cast("Sequence[Any]", read)
    if isinstance(read, list) and len(both) == 2:
        return tuple(both[0]), both[1]
    return (cast("Any", read),), {}


def readable(recorded: Any) -> Any:
    """The value of recorded bytes, the exception of a recorded failure, or why it cannot be read."""
    try:
        if isinstance(recorded, bytes):
            return decode(recorded)
        return None if recorded is None else recorded_exception(recorded)
    except DecodeError as error:
        return error


__all__ = ["Attempt", "Checkpoint", "Execution", "Record"]
