"""Schedules, as code declares them, with checks and conversions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast, get_args

from stepfast import _native
from stepfast._options.queue import CONFLICT_POLICIES
from stepfast._options.start_options import CheckedOptions
from stepfast._validation import bounds
from stepfast._validation.durations import Duration, to_seconds
from stepfast._validation.text import short_repr
from stepfast._validation.times import instant_micros
from stepfast._workflow.registry import registered_workflow
from stepfast._workflow.remote import RemoteWorkflow
from stepfast._workflow.start_target import no_workflow_error, start_target
from stepfast._workflow.startable import Startable
from stepfast._workflow.workflow import Workflow
from stepfast.errors import InvalidArgument

Overlap: TypeAlias = Literal["skip", "buffer_one", "buffer_all", "cancel_running", "allow"]
"""The reaction of a schedule to an instant at which an execution that it has started still runs."""
CatchUp: TypeAlias = Literal["none", "last", "all"]
"""The reaction of a schedule to instants that have passed while no worker could run the schedule."""

#: The maximum size of the name of a schedule, in bytes.
MAX_SCHEDULE_NAME_BYTES: Final = 128
#: The maximum number of failures before a schedule pauses itself.
MAX_PAUSE_AFTER: Final = 2**32 - 1
#: The attribute whose value is the name of the schedule, which has started the execution.
SCHEDULE_ATTRIBUTE: Final = "schedule"

#: The options that the executions of a schedule cannot have. Each text gives the reason and the remedy.
_NOT_FOR_SCHEDULES: Final = {
    "workflow_id": "gives each execution an id of its own, from its name and the instant: leave it out",
    "dedup_id": "starts each instant once: leave it out, and choose what happens meanwhile by overlap",
    "on_duplicate": "starts each instant once: leave it out, and choose what happens meanwhile by overlap",
    "delay": "starts its executions at its instants: leave it out, and change cron, every or at",
    "start_at": "starts its executions at its instants: leave it out, and use at or starts_at",
    "debounce": "starts one execution for each instant: leave it out",
    "max_delay": "starts one execution for each instant: leave it out",
    "wait_timeout": "is run by workers, and no caller waits for its starts: leave it out",
    "on_full": "starts executions even in a full queue: leave it out",
}


@dataclass(frozen=True, slots=True, init=False)
class Schedule:
    """A schedule, as code declares it: it starts an execution of a workflow at each of its instants. An
    example is `Schedule("nightly", report, "all", cron="0 2 * * *", timezone="Europe/Berlin")` in the
    argument `schedules` of an engine.

    A schedule has one timing: `cron`, `every` or `at`. Each instant gets one execution, on whichever worker
    runs then, and its workflow_id contains the instant: `nightly@2026-03-01T01:00:00Z`. The code reads the
    instant as `stepfast.current().scheduled_at`.

    Args:
        name: The name of the schedule, at most 128 bytes, without `#` and `@`.
        workflow: The workflow. `RemoteWorkflow` names one whose code is in another program. The options
            `queue`, `key`, `priority`, `execution_timeout`, `run_timeout` and `attributes` apply to the
            executions: `report.options(queue="reports")`. Other options are not allowed. The executions also
            have the attribute `schedule`, with the name of the schedule.
        args: The workflow's arguments by position, of at most 32 KiB together with `kwargs`.
        cron: A cron expression of five fields (minute, hour, day of the month, month, day of the week), or of
            six fields with the seconds first. None for another timing.
        every: The time between two instants, as seconds or as a `timedelta`, from one second to a hundred
            years. Instants are at multiples of this time since 1970 in UTC, or since `starts_at`. None for
            another timing.
        at: The only instant, as a datetime with a time zone. None for another timing.
        timezone: The time zone of `cron`, by its IANA name; UTC by default.
        overlap: What the schedule does at an instant at which an execution that it has started still runs.
            `skip` skips the instant. `buffer_one` starts its execution after the end of the running one, and
            skips further instants until then. `buffer_all` starts the executions of all such instants one
            after the other. `cancel_running` cancels the running execution first. `allow` starts the
            execution beside the running one. `skip` by default.
        catch_up: What the schedule does about instants that have passed while no worker ran. `none` skips
            instants that are more than a minute late. `last` starts the execution of the last one. `all`
            starts the executions of all. `last` by default.
        jitter: The maximum delay of an execution after its instant, as seconds or as a `timedelta`; 0 by
            default. The name of the schedule and the instant determine the delay.
        starts_at: The time before which there are no instants, as a datetime with a time zone; no bound by
            default.
        ends_at: The time after which there are no instants, as a datetime with a time zone; no bound by
            default.
        pause_after: The number of executions that fail one after the other before the schedule pauses itself,
            at least 1; no limit by default.
        kwargs: The workflow's arguments by name; none by default.
        on_conflict: What an engine or client that declares the schedule does when it opens, if the schedule
            is stored with other values. `update` stores these values. `keep` leaves the stored ones. `reject`
            raises `ScheduleConflict`. `update` by default.

    Attributes:
        name: The name of the schedule.
        workflow: The name of the workflow.
        on_conflict: What an engine or client does when it opens, if the schedule is stored with other values.

    Raises:
        InvalidArgument: An argument is out of its bounds, or there is not exactly one timing. The cron
            expression or the time zone cannot be read. The value is no workflow, or an option of the workflow
            is not allowed here.
        EncodeError: An argument of the workflow cannot be recorded.
        TypeError: The workflow does not take these arguments.
    """

    name: str
    workflow: str
    on_conflict: Literal["update", "keep", "reject"]
    _values: _native.Schedule = field(repr=False, hash=False)
    _parts: ScheduleParts = field(repr=False, compare=False)

    def __init__(
        self,
        name: str,
        workflow: Startable[..., Any],
        *args: Any,
        cron: str | None = None,
        every: Duration | None = None,
        at: datetime | None = None,
        timezone: str | None = None,
        overlap: Overlap = "skip",
        catch_up: CatchUp = "last",
        jitter: Duration = 0,
        starts_at: datetime | None = None,
        ends_at: datetime | None = None,
        pause_after: int | None = None,
        kwargs: Mapping[str, Any] | None = None,
        on_conflict: Literal["update", "keep", "reject"] = "update",
    ) -> None:
        check_schedule_name("the schedule's name", name)
        what = f"of schedule {short_repr(name)}"
        _check_choice(f"overlap {what}", overlap, get_args(Overlap))
        _check_choice(f"catch_up {what}", catch_up, get_args(CatchUp))
        _check_choice(f"on_conflict {what}", on_conflict, CONFLICT_POLICIES)
        if pause_after is not None:
            bounds.check_count(f"pause_after {what}", pause_after, 1, MAX_PAUSE_AFTER)
        _check_timing(what, {"cron": cron, "every": every, "at": at}, timezone)
        starts_micros, ends_micros = (
            _micros(f"starts_at {what}", starts_at),
            _micros(f"ends_at {what}", ends_at),
        )
        if starts_micros is not None and ends_micros is not None and ends_micros < starts_micros:
            raise InvalidArgument(
                f"ends_at {what} is {short_repr(ends_at)}, and must not be before starts_at, which is "
                f"{short_repr(starts_at)}"
            )
        found, bound_args, options = start_target(workflow)
        if not isinstance(found, Workflow | RemoteWorkflow):
            raise no_workflow_error(
                found,
                "give a name, a workflow, then its arguments, as in "
                "Schedule('nightly', report, 'all', cron='0 2 * * *')",
            )
        target = cast("Workflow[..., Any] | RemoteWorkflow[..., Any]", found)
        arguments, by_name = (*bound_args, *args), _check_kwargs(what, kwargs)
        parts = ScheduleParts(target, arguments, by_name)
        values = _native.Schedule(
            name,
            target.name,
            arguments,
            by_name,
            parts.signature,
            cron=cron,
            every=None if every is None else to_seconds(f"every {what}", every, 1, bounds.MAX_SECONDS),
            at=_micros(f"at {what}", at),
            timezone=timezone,
            overlap=overlap,
            catch_up=catch_up,
            jitter=to_seconds(f"jitter {what}", jitter, 0, bounds.MAX_SECONDS),
            starts_at=starts_micros,
            ends_at=ends_micros,
            pause_after=pause_after,
            **_checked_options(what, options),
        )
        fields = {
            "name": name,
            "workflow": target.name,
            "on_conflict": on_conflict,
            "_values": values,
            "_parts": parts,
        }
        for field_name, value in fields.items():
            # plain assignment raises, because the class is frozen
            object.__setattr__(self, field_name, value)


class ScheduleParts(NamedTuple):
    """The workflow of a schedule, and its arguments, as the caller has given them.

    Attributes:
        workflow: The workflow.
        args: The arguments by position.
        kwargs: The arguments by name.
    """

    workflow: Workflow[..., Any] | RemoteWorkflow[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def signature(self) -> _native.Signature | None:
        """The parameters of the workflow; None if they are not known. A graph knows them when it is
        complete."""
        if isinstance(self.workflow, Workflow):
            return self.workflow.signature
        defined = registered_workflow(self.workflow.name)
        return None if defined is None else defined.signature


def check_schedule_name(what: str, name: Any) -> None:
    """Checks that a value may be the name of a schedule.

    Args:
        what: The name of the option, for the error message.
        name: The value, as the caller has given it.

    Raises:
        InvalidArgument: The value is no text, empty, too long or not printable, or contains `#` or `@`.
    """
    bounds.check_name(what, name, MAX_SCHEDULE_NAME_BYTES)
    if "#" in name or "@" in name:
        raise InvalidArgument(
            f"{what} is {short_repr(name)}, and must not contain '#' or '@', which separate the parts of "
            "workflow_ids"
        )


def declared_schedules(schedules: Any) -> list[Schedule]:
    """Returns the schedules that an engine or a client declares.

    Raises:
        InvalidArgument: A value is no schedule, or two schedules have the same name.
    """
    if isinstance(schedules, (str, Schedule)) or not hasattr(schedules, "__iter__"):
        raise InvalidArgument(
            f"schedules is {short_repr(schedules)}, and must be a list, as in "
            "schedules=[Schedule('nightly', report, cron='0 2 * * *')]"
        )
    listed = [checked_schedule(schedule, " in schedules") for schedule in schedules]
    names = [schedule.name for schedule in listed]
    duplicates = {name for name in names if names.count(name) > 1}
    if duplicates:
        raise InvalidArgument(f"schedules has {short_repr(min(duplicates))} more than once: declare it once")
    return listed


def checked_schedule(schedule: Any, where: str = "") -> Schedule:
    """Returns a value that is a schedule.

    Args:
        schedule: The schedule, as the caller has given it.
        where: The place at which the caller gave it, for the error message.

    Raises:
        InvalidArgument: The value is no `Schedule`.
    """
    if not isinstance(schedule, Schedule):
        raise InvalidArgument(
            f"{short_repr(schedule)}{where} is no schedule: write Schedule('nightly', report, "
            "cron='0 2 * * *')"
        )
    return schedule


def schedule_parts(schedule: Any) -> ScheduleParts:
    """Returns the workflow of a schedule and its arguments, as the caller has given them."""
    parts: ScheduleParts = schedule._parts
    return parts


def native_schedule(schedule: Any) -> _native.Schedule:
    """Returns a schedule for the native engine.

    Raises:
        TypeError: The workflow does not take the arguments: its parameters were not known before.
    """
    parts = schedule_parts(schedule)
    if parts.signature is not None:
        parts.signature.check(parts.args, parts.kwargs)
    values: _native.Schedule = schedule._values
    return values


def _check_choice(what: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidArgument(
            f"{what} is {short_repr(value)}, and must be one of {', '.join(map(repr, choices))}"
        )


def _check_timing(what: str, timings: dict[str, Any], timezone: Any) -> None:
    """Checks that exactly one timing is given, and that a time zone goes with it."""
    given = [name for name, value in timings.items() if value is not None]
    if len(given) != 1:
        found = f"{' and '.join(given)} are given" if given else "none is given"
        raise InvalidArgument(f"the timing {what} is one of cron, every and at, and {found}: give one")
    if timings["cron"] is not None:
        bounds.check_name(f"cron {what}", timings["cron"])
    if timezone is None:
        return
    if timings["cron"] is None:
        raise InvalidArgument(
            f"timezone {what} is {short_repr(timezone)}, and goes with cron only: leave it out"
        )
    bounds.check_name(f"timezone {what}", timezone)


def _micros(what: str, at: Any) -> int | None:
    return None if at is None else instant_micros(what, at)


def _check_kwargs(what: str, kwargs: Any) -> dict[str, Any]:
    """Checks arguments by name, and returns a copy of them."""
    if kwargs is None:
        return {}
    if not isinstance(kwargs, Mapping):
        raise InvalidArgument(
            f"kwargs {what} is {short_repr(kwargs)}, and must be a dict: write kwargs={{'region': 'eu'}}"
        )
    copied = dict(cast("dict[Any, Any]", kwargs))
    for name in copied:
        bounds.check_text(f"a name in kwargs {what}", name)
    return copied


def _checked_options(what: str, options: CheckedOptions | None) -> dict[str, Any]:
    """Returns the options of the workflow, with which the executions start."""
    if options is None:
        return {}
    options.refuse(_NOT_FOR_SCHEDULES, "a schedule")
    if SCHEDULE_ATTRIBUTE in options.values.get("attributes", {}):
        raise InvalidArgument(
            f"attributes {what} has {SCHEDULE_ATTRIBUTE!r}, whose value is the name of the schedule: use "
            "another name"
        )
    return options.values


__all__ = ["CatchUp", "Overlap", "Schedule"]
