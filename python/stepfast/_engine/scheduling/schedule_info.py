"""Schedules, as they are stored, with their present states."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from stepfast._engine.records import arguments_of, readable
from stepfast._engine.scheduling.schedule import CatchUp, Overlap
from stepfast._validation.times import to_datetime, to_datetime_or_none, to_timedelta


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule as it is stored, and its present state. Datetimes are in UTC.

    Attributes:
        name: The name of the schedule.
        workflow: The name of the workflow.
        args: The workflow's arguments by position. If they cannot be read, a `DecodeError` stands for them.
        kwargs: The workflow's arguments by name.
        cron: The cron expression; None for another timing.
        every: The time between two instants; None for another timing.
        at: The only instant; None for another timing.
        timezone: The time zone of `cron`, by its IANA name; None for another timing.
        overlap: What the schedule does at an instant at which an execution that it has started still runs.
        catch_up: What the schedule does about instants that have passed while no worker ran.
        jitter: The maximum delay of an execution after its instant.
        starts_at: The time before which there are no instants; None for no bound.
        ends_at: The time after which there are no instants; None for no bound.
        pause_after: The number of executions that fail one after the other before the schedule pauses itself;
            None for no limit.
        queue: The queue in which the executions wait; None for no queue.
        key: The key of the executions within the queue; None for no key.
        priority: The priority of the executions among those of the same queue and key.
        execution_timeout: The time limit of an execution from its start; None for no limit.
        run_timeout: The time limit of an execution from the moment at which it begins; None for no limit.
        attributes: The attributes of the executions, besides `schedule`.
        is_paused: Whether the schedule is paused.
        pause_reason: The reason of the pause, empty if none was given; None if the schedule is not paused.
        paused_itself: Whether the schedule paused itself, after too many failures.
        next: The next instant; None if there is none, or if the schedule is paused.
        last_started: The last instant whose execution was started; None if there is none.
        started: The number of executions that the schedule has started, for instants, triggers and backfills.
        skipped: The number of instants that were skipped because of `overlap`. Instants that were missed, and
            those of a pause, do not count.
        skips: The last of these instants, at most 10.
        buffered: The number of instants that wait for the end of a running execution.
        backfills: The number of backfills that are under way.
        failures: The number of executions that have failed one after the other. Only a schedule with
            `pause_after` counts them.
        error: The reason why the last start failed; None if it succeeded.
        workflow_id: The workflow_id of the execution that is the schedule.
        stopped: The reason why the schedule does not continue, such as a parked execution; None if it does.
        is_late: Whether the next instant has passed for more than a minute, because no worker runs the
            schedule.
    """

    name: str
    workflow: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    cron: str | None
    every: timedelta | None
    at: datetime | None
    timezone: str | None
    overlap: Overlap
    catch_up: CatchUp
    jitter: timedelta
    starts_at: datetime | None
    ends_at: datetime | None
    pause_after: int | None
    queue: str | None
    key: str | None
    priority: int
    execution_timeout: timedelta | None
    run_timeout: timedelta | None
    attributes: dict[str, str]
    is_paused: bool
    pause_reason: str | None
    paused_itself: bool
    next: datetime | None
    last_started: datetime | None
    started: int
    skipped: int
    skips: tuple[datetime, ...]
    buffered: int
    backfills: int
    failures: int
    error: str | None
    workflow_id: str
    stopped: str | None
    is_late: bool


def schedule_info(row: Any) -> ScheduleInfo:
    """Converts the tuples of the native engine to a schedule."""
    declared, (queue, key, priority, execution_timeout, run_timeout, attributes), state = row
    name, workflow, arguments, cron, every, at, timezone, policies, jitter, *rest = declared
    starts_at, ends_at, pause_after = rest
    pause, next_instant, last_started, started, skipped, skips, *rest = state
    buffered, backfills, failures, error, workflow_id, (stopped, is_late) = rest
    args, kwargs = arguments_of(readable(arguments))
    overlap, catch_up = policies
    pause_reason, paused_itself = pause or (None, False)
    return ScheduleInfo(
        name=name,
        workflow=workflow,
        args=args,
        kwargs=kwargs,
        cron=cron,
        every=None if every is None else timedelta(microseconds=every),
        at=to_datetime_or_none(at),
        timezone=timezone,
        overlap=overlap,
        catch_up=catch_up,
        jitter=timedelta(microseconds=jitter),
        starts_at=to_datetime_or_none(starts_at),
        ends_at=to_datetime_or_none(ends_at),
        pause_after=pause_after,
        queue=queue,
        key=key,
        priority=priority,
        execution_timeout=None if execution_timeout is None else to_timedelta(execution_timeout),
        run_timeout=None if run_timeout is None else to_timedelta(run_timeout),
        attributes=attributes,
        is_paused=pause is not None,
        pause_reason=pause_reason,
        paused_itself=paused_itself,
        next=to_datetime_or_none(next_instant),
        last_started=to_datetime_or_none(last_started),
        started=started,
        skipped=skipped,
        skips=tuple(to_datetime(instant) for instant in skips),
        buffered=buffered,
        backfills=backfills,
        failures=failures,
        error=error,
        workflow_id=workflow_id,
        stopped=stopped,
        is_late=is_late,
    )


def schedule_infos(rows: Any) -> list[ScheduleInfo]:
    """Converts tuples of the native engine to schedules."""
    return [schedule_info(row) for row in rows]


__all__ = ["ScheduleInfo"]
