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
    """An execution, as `list` and `show` return it.

    Attributes:
        workflow_id: The execution's workflow_id.
        workflow: The name of the execution's workflow.
        status: The execution's status.
        is_parked: Whether the execution is parked: then it continues only when it is resumed.
        parent: The key of the parent; None for an execution without a parent. Methods that take a workflow_id
            accept a key too.
        run_no: A number that begins at 1, and grows by one when the execution is resumed after its end.
        recoveries: The number of times that the execution was continued after its worker had died.
        created_at: The time at which the start was called, by the database's clock. The start became durable
            somewhat later.
        ended_at: The time of its end; None before.
        deadline_at: The time at which the execution is cancelled unless it has ended; None for no limit.
        wake_at: For a scheduled execution, the time from which it may begin. For a waiting one, the time at
            which the earliest of its sleeps ends. None otherwise.
        app_version: The version of the code that a worker needs to run the execution; None for any version.
        queue: The queue in which the execution was started; None for no queue.
        key: The execution's key within the queue; None for no key.
        priority: The execution's priority. Among executions of the same queue and key, smaller priorities
            begin first. 0 by default.
        dedup_id: The id that no other unfinished execution of the same queue has; None for no such id, and
            after the end of the execution.
        debounce: The id by which starts of the execution are debounced; None for no such id, and once the
            execution is due.
        run_timeout: The option `run_timeout` of the start; None for no limit, and after the execution has
            begun.
        attributes: Names with values by which lists find the execution.
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
        """The time from the call of the start to the end of the execution; None before its end."""
        return None if self.ended_at is None else self.ended_at - self.created_at

    @classmethod
    def __stepfast_upgrade__(cls, fields: dict[str, Any]) -> dict[str, Any]:
        # earlier programs have recorded the status as text, and the time limit in seconds
        run_timeout = fields["run_timeout"]
        if isinstance(run_timeout, float):
            run_timeout = to_timedelta(run_timeout)
        return {**fields, "status": Status(fields["status"]), "run_timeout": run_timeout}


@dataclass(frozen=True, slots=True)
class ExecutionOutcome:
    """An execution and its outcome so far, as `get_many` and `find` return them.

    Attributes:
        execution: The execution itself.
        output: The output of a completed execution; None for any other execution.
        error: The exception with which the execution failed, or the reason for which it was cancelled or is
            parked; None otherwise. If the output cannot be read, the `DecodeError`.
    """

    execution: Execution
    output: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The recorded outcome of a durable call.

    Attributes:
        path: The position of the call in the execution, such as `3` or `2.1`.
        name: The name of the step, event or stream, the topic of the message, or the name of the child's
            workflow. `sleep` for a sleep. For a token `token` and its position, for a question `question` and
            its topic, for an answer `answer` and the id of the question.
        kind: `step`, `failed` (the error of a step or of another call), `abandoned` (a call for which the
            code stopped waiting), `sleep` (also a wait for a message or an event that ended at its timeout),
            `child` (the end of a child), `started` (the start of a child), `message` (a received message),
            `sent` (a message that was sent), `event` (an event that was set), `event read`, or `stream write`
            (a value that the code of the workflow wrote to a stream, or the end of a closed one). For
            children, the value is the child's key.
        value: The value of a step, or the exception of a failed step; a `DecodeError` if this program cannot
            read the recorded value. None for `stream write`. For children see `kind`.
        recorded_at: The time at which the code received the outcome.
        duration: The time from the call until the code received the outcome.
    """

    path: str
    name: str
    kind: str
    value: Any
    recorded_at: datetime
    duration: timedelta

    @classmethod
    def __stepfast_upgrade__(cls, fields: dict[str, Any]) -> dict[str, Any]:
        # earlier programs have recorded `duration` as `took`
        return {"duration" if name == "took" else name: value for name, value in fields.items()}


@dataclass(frozen=True, slots=True)
class Attempt:
    """A failed attempt of a step.

    Attributes:
        path: The position of the step in the execution, such as `3` or `2.1`.
        number: The number of the attempt, from 1.
        error: The exception with which the attempt failed.
        failed_at: The time of the failure.
    """

    path: str
    number: int
    error: BaseException
    failed_at: datetime


@dataclass(frozen=True, slots=True)
class Wait:
    """A wake condition of a suspended execution.

    Attributes:
        kind: `child` (the end of a child), `message` or `event`.
        key: The key of the child, or of the execution that sets the event; None for a message.
        name: The topic of the message, or the name of the event; None for a child. For tokens and questions
            as in `Checkpoint`.
    """

    kind: str
    key: str | None
    name: str | None


@dataclass(frozen=True, slots=True)
class Event:
    """An event that an execution has set.

    Attributes:
        name: The name of the event.
        value: The value; a `DecodeError` if this program cannot read the recorded value.
        set_at: The time at which the event was set.
    """

    name: str
    value: Any
    set_at: datetime


@dataclass(frozen=True, slots=True)
class Record:
    """Everything that is recorded of an execution.

    Attributes:
        execution: The execution itself.
        args: The workflow's arguments by position. If they cannot be read, a `DecodeError` stands for them.
        kwargs: The workflow's arguments by name.
        output: The output of a completed execution; None for any other execution.
        error: The exception with which the execution failed, or the reason for which it was cancelled or is
            parked; None otherwise.
        checkpoints: The recorded outcomes, in the order in which they were delivered.
        attempts: The failed attempts of steps.
        waits: The wake conditions of a suspended execution, other than its timer; empty for any other one.
    """

    execution: Execution
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    output: Any = None
    error: BaseException | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    waits: tuple[Wait, ...] = ()

    def __rich_repr__(self) -> Iterator[Any]:
        yield self.execution
        yield "args", self.args, ()
        yield "kwargs", self.kwargs, {}
        yield "output", self.output, None
        yield "error", self.error, None
        yield "checkpoints", list(self.checkpoints), []
        yield "attempts", list(self.attempts), []
        yield "waits", list(self.waits), []


def execution_of(row: Any) -> Execution:
    """Converts a row of the native engine to an execution."""
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
    """Converts the reply of the native engine's `show` to a record."""
    row, arguments, outcome, checkpoints, attempts, waits = shown
    execution = execution_of(row)
    # a batch has no arguments of its own
    args, kwargs = arguments_of(readable(arguments)) if arguments else ((), {})
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
        waits=tuple(Wait(kind, key, name) for kind, key, name in waits),
    )


def events_of(rows: Any) -> list[Event]:
    """Converts the events in the reply of the native engine."""
    return [Event(name, readable(value), to_datetime(at)) for name, value, at in rows]


def outcome_of(found: Any) -> ExecutionOutcome:
    """Converts an execution in the reply of the native engine's `get_many` or `find`."""
    row, outcome = found
    execution, value = execution_of(row), readable(outcome)
    if execution.status == Status.COMPLETED and not isinstance(value, DecodeError):
        return ExecutionOutcome(execution, output=value)
    return ExecutionOutcome(execution, error=value)


def arguments_of(read: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments by position and by name. A value that is no list of both counts as the only
    argument."""
    both = cast("Sequence[Any]", read)
    if isinstance(read, list) and len(both) == 2:
        return tuple(both[0]), both[1]
    return (cast("Any", read),), {}


def readable(recorded: Any) -> Any:
    """Returns the value of recorded bytes or the exception of a recorded failure. For bytes that cannot be
    read, returns the `DecodeError`."""
    try:
        if isinstance(recorded, bytes):
            return decode(recorded)
        return None if recorded is None else recorded_exception(recorded)
    except DecodeError as error:
        return error


__all__ = ["Attempt", "Checkpoint", "Event", "Execution", "ExecutionOutcome", "Record", "Wait"]
