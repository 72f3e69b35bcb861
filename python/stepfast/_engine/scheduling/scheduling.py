"""The operations of clients and engines on schedules."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from stepfast._engine.handle import Handle
from stepfast._engine.scheduling.schedule import Schedule
from stepfast._engine.scheduling.schedule_info import ScheduleInfo

if TYPE_CHECKING:
    from stepfast._engine.open_engine import OpenEngine


class Scheduling:
    """The operations of a client or an engine on schedules."""

    _open_engine: OpenEngine

    def set_schedule(self, schedule: Schedule) -> None:
        """Creates a schedule, or changes the one that has its name. When the call returns, the change is
        durable, and a worker applies it before the schedule starts its next execution. A changed timing
        counts from then on. A paused schedule stays paused.

        Args:
            schedule: The schedule. Its `on_conflict` has no effect here: the stored values are replaced.

        Raises:
            InvalidArgument: The value is no `Schedule`, the schedule has no instant in the future, its
                arguments are too large, or this engine cannot run the workflow.
            NotFound: Its queue does not exist.
            TypeError: The workflow does not take the arguments.
            EngineClosed: The engine is closed.
        """
        self._open_engine.set_schedule(schedule).wait()

    def schedule(self, name: str) -> ScheduleInfo:
        """Returns a schedule as it is stored, and its present state. No worker needs to run.

        Args:
            name: The name of the schedule.

        Raises:
            ScheduleNotFound: There is no such schedule.
            InvalidArgument: No schedule can have the name.
        """
        return self._open_engine.schedule(name).wait()

    def schedules(self) -> list[ScheduleInfo]:
        """Returns all schedules, sorted by name."""
        return self._open_engine.schedules().wait()

    def pause_schedule(self, name: str, reason: str = "") -> None:
        """Pauses a schedule: it starts no executions until it is resumed, except those that are triggered.
        Executions that run continue.

        Args:
            name: The name of the schedule.
            reason: The reason, which `ScheduleInfo.pause_reason` shows; empty by default.

        Raises:
            ScheduleNotFound: There is no such schedule.
            InvalidArgument: No schedule can have the name, the reason is no text, or the schedule has
                stopped.
        """
        self._open_engine.pause_schedule(name, reason).wait()

    def resume_schedule(self, name: str) -> None:
        """Resumes a paused schedule, from its next instant on. The instants of the pause get no executions;
        `backfill_schedule` starts those.

        Args:
            name: The name of the schedule.

        Raises:
            ScheduleNotFound: There is no such schedule.
            InvalidArgument: No schedule can have the name, or the schedule has stopped.
        """
        self._open_engine.resume_schedule(name).wait()

    def delete_schedule(self, name: str) -> None:
        """Deletes a schedule. Executions that it has started continue.

        Args:
            name: The name of the schedule.

        Raises:
            ScheduleNotFound: There is no such schedule.
            InvalidArgument: No schedule can have the name, or the schedule has stopped.
        """
        self._open_engine.delete_schedule(name).wait()

    def trigger_schedule(self, name: str) -> Handle[Any]:
        """Starts an execution of a schedule now, also if the schedule is paused or an execution runs. The
        call waits until a worker has started the execution.

        Args:
            name: The name of the schedule.

        Returns:
            A handle to the execution.

        Raises:
            ScheduleNotFound: There is no such schedule.
            InvalidArgument: No schedule can have the name, or the schedule has stopped.
            EngineClosed: The engine was closed during the wait.
        """
        open_engine = self._open_engine
        handle: Handle[Any] = Handle(open_engine.trigger_schedule(name).wait(), open_engine)
        return handle

    def backfill_schedule(self, name: str, start: datetime, end: datetime) -> int:
        """Starts the executions of all instants in a range of the past that have none. With the overlap
        policy `allow` they start at once. With any other policy they start one after the other. The call
        returns before they start.

        Args:
            name: The name of the schedule.
            start: The beginning of the range, which is part of it, as a datetime with a time zone.
            end: The end of the range, which is part of it, as a datetime with a time zone.

        Returns:
            The number of instants in the range, also of those that have an execution.

        Raises:
            ScheduleNotFound: There is no such schedule.
            InvalidArgument: The range ends in the future, or contains no instant or more than 10,000; a time
                has no time zone; no schedule can have the name; or the schedule has stopped.
        """
        return self._open_engine.backfill_schedule(name, start, end).wait()
