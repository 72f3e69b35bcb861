"""The records of executions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast

from stepfast._engine.status import Status
from stepfast._runtime.failures import recorded_exception
from stepfast._validation.times import to_datetime, to_datetime_or_none, to_timedelta
from stepfast._values import DecodeError, decode


@dataclass(frozen=True, slots=True)
class Execution:
    """An execution, as lists show it.

    Attributes:
        workflow_id: Its workflow_id.
        workflow: The name of its workflow.
        status: Its status.
        is_parked: Whether it is parked: then it continues only when it is resumed.
        parent: The key of the parent, for a child. A key is accepted wherever a workflow_id is.
        run_no: The number of its run: 1, and one more for each resume.
        recoveries: How often it was continued after its worker had died.
        created_at: The time at which its start was called, by the database's clock; it is durable somewhat
            later.
        ended_at: The time of its end; None before.
        deadline_at: The time at which it is cancelled unless it has ended; None for no limit.
        wake_at: The time at which it may begin, while it is scheduled; the time at which the earliest of its
            sleeps ends, while it waits; None otherwise.
        app_version: The version of the code that it is pinned to; None for any version.
        queue: The queue that it was started in; None for no queue.
        key: Its key within the queue; None for no key.
        priority: Its priority: smaller ones begin first among those of its queue and key; 0 by default.
        dedup_id: The id that no other unfinished execution of its queue has; None once it has ended.
        debounce: The id by which its starts are debounced; None once it is due.
        run_timeout: The time limit of its run, until it begins; None for no limit, and after it has begun.
        attributes: Names with values by which lists can select it.
    """

    workflow_id: str
    workflow: str
    status: Status
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
    run_timeout: timedelta | None
    attributes: dict[str, str]

    @property
    def duration(self) -> timedelta | None:
        """The time from the call of its start to its end; None before its end."""
        return None if self.ended_at is None else self.ended_at - self.created_at

    @classmethod
    def __stepfast_upgrade__(cls, fields: dict[str, Any]) -> dict[str, Any]:
        # earlier programs have recorded the status as text, and the time limit in seconds
        run_timeout = fields["run_timeout"]
        if isinstance(run_timeout, float):
            run_timeout = to_timedelta(run_timeout)
        return {**fields, "status": Status(fields["status"]), "run_timeout": run_timeout}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A recorded outcome.

    Attributes:
        path: Its position in the execution, such as `3` or `2.1`.
        name: The name of the step, or of the child's workflow; `sleep`.
        kind: `step`, `failed` (the error of a step), `abandoned` (a call that the code stopped waiting for),
            `sleep`, `child` (the end of a child; the value is its key) or `started` (the start of a child;
            the value is its key).
        value: The value of a step, or the exception of a failed one. A `DecodeError` if this program cannot
            read it.
        recorded_at: The time of its delivery.
        duration: The time from the call to its delivery.
    """

    path: str
    name: str
    kind: str
    value: Any
    recorded_at: datetime
    duration: timedelta

    @classmethod
    def __stepfast_upgrade__(cls, fields: dict[str, Any]) -> dict[str, Any]:
        # the field's name in earlier programs
        return {"duration" if name == "took" else name: value for name, value in fields.items()}


@dataclass(frozen=True, slots=True)
class Attempt:
    """A failed attempt of a step.

    Attributes:
        path: The position of the step.
        number: The number of the attempt, from 1.
        error: The exception with which it failed.
        failed_at: The time of the failure.
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
        args: The arguments of its workflow by position; a `DecodeError` stands for arguments that cannot be
            read.
        kwargs: The arguments by name.
        output: Its output, once it has completed.
        error: The exception with which it failed, or the reason for which it was cancelled or is parked.
        checkpoints: The recorded outcomes, in the order in which they were delivered.
        attempts: The failed attempts of steps.
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
    """Returns the execution of a row of the engine."""
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
        status=Status(status),
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
        run_timeout=None if run_timeout is None else to_timedelta(run_timeout),
        attributes=attributes,
    )


def record_of(shown: Any) -> Record:
    """Returns the record of an execution that the engine shows."""
    row, arguments, outcome, checkpoints, attempts = shown
    execution = execution_of(row)
    args, kwargs = arguments_of(readable(arguments))
    value = readable(outcome)
    is_output = execution.status == Status.COMPLETED
    return Record(
        execution,
        args,
        kwargs,
        output=value if is_output else None,
        error=None if is_output else value,
        checkpoints=tuple(
            Checkpoint(path, name, kind, readable(value), to_datetime(at), timedelta(milliseconds=millis))
            for path, name, kind, value, at, millis in checkpoints
        ),
        attempts=tuple(
            Attempt(path, number, readable(failure), to_datetime(at))
            for path, number, failure, at in attempts
        ),
    )


def arguments_of(read: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments by position and by name. A value that is no list of both is the first
    argument."""
    both = cast("Sequence[Any]", read)
    if isinstance(read, list) and len(both) == 2:
        return tuple(both[0]), both[1]
    return (cast("Any", read),), {}


def readable(recorded: Any) -> Any:
    """Returns the value of recorded bytes, the exception of a recorded failure, or the `DecodeError` of
    unreadable bytes."""
    try:
        if isinstance(recorded, bytes):
            return decode(recorded)
        return None if recorded is None else recorded_exception(recorded)
    except DecodeError as error:
        return error


__all__ = ["Attempt", "Checkpoint", "Execution", "Record"]
