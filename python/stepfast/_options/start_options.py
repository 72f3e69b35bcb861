"""The options of starts, and the checks of these options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypedDict, cast, get_args

from stepfast import _native
from stepfast._options.queue import DEFAULT_QUEUE, Queue, queue_name
from stepfast._validation import bounds
from stepfast._validation.attributes import check_attributes
from stepfast._validation.durations import Duration, to_seconds, to_timeout
from stepfast._validation.text import short_repr
from stepfast._validation.times import instant_micros
from stepfast.errors import InvalidArgument

OnDuplicate: TypeAlias = Literal["reject", "return_existing"]
"""The effect of a start if an unfinished execution of its queue already has its `dedup_id`."""
OnFull: TypeAlias = Literal["reject", "wait"]
"""The effect of a start if its queue is full."""

#: The longest delay, in seconds: more than 3,000 years.
MAX_DELAY: Final = 1e11


class StartOptions(TypedDict, total=False):
    """The options of a start: `engine.start(send.options(queue="emails", key="ann"), "ann")`. None is the
    same as leaving the option out. Durations are seconds or a `timedelta`.

    Attributes:
        workflow_id: The execution's id, at most 1,024 bytes. The id makes the start idempotent: a second
            start with the same id, workflow and arguments returns the first execution. By default the id is
            generated, and such ids sort by time.
        execution_timeout: The time limit from the start of the execution to its end. An execution that takes
            longer is cancelled. No limit by default.
        run_timeout: The time limit from the moment at which the execution begins to its end. The time in the
            queue before does not count; later waits and recoveries do. An execution that takes longer is
            cancelled. No limit by default.
        wait_timeout: The longest time for which the call waits for an unreachable database or, with
            `on_full="wait"`, for capacity. Then it raises `StoreUnavailable` or `QueueFull`. No limit by
            default. After `StoreUnavailable` the start may become durable nevertheless; repeating it with the
            same workflow_id is safe.
        queue: The queue in which the execution waits for a worker, as its name or as a `Queue`. This program
            or another one must have declared the queue. By default the execution has no queue, and begins at
            once in the engine that starts it, if possible.
        key: The execution's key within the queue, at most 1,024 bytes. Keys share a queue fairly, so that no
            key waits behind the backlog of another. The queue can limit its keys. None by default.
        priority: The priority among executions of the same queue and key: smaller numbers come first. 0 by
            default.
        dedup_id: An id that at most one unfinished execution of the queue has, whatever its key is; at most
            1,024 bytes. None by default.
        on_duplicate: What the start does if an unfinished execution has its `dedup_id`: `reject` raises
            `DedupConflict`, `return_existing` returns that execution, if it is of the same workflow. `reject`
            by default.
        on_full: What the start does if the queue has reached its `max_depth`: `reject` raises `QueueFull`,
            `wait` waits for capacity for at most `wait_timeout`. `reject` by default.
        delay: The time span from the start until the execution is due. The execution enters its queue only
            then. No delay by default.
        start_at: The time at which the execution is due, instead of a `delay`: a datetime with a time zone,
            by the clock of the database. None by default.
        debounce: The debounce id, at most 1,024 bytes. Starts of this workflow in this queue with the same
            debounce id are merged into one execution until it is due. Each further start moves the due time
            to its own `delay` from then, and replaces the arguments, the key, the priority and the
            `run_timeout`. The arguments may have at most 64 KiB. None by default.
        max_delay: The longest time for which debounced starts postpone the execution, from the first start.
            No limit by default.
        attributes: Names with values by which lists find the execution: `engine.list(attributes=…)`.
            Attributes never change, and children do not inherit them. There are at most 64, with names of at
            most 128 bytes and values of at most 1,024 bytes. None by default.
    """

    workflow_id: str | None
    execution_timeout: Duration | None
    run_timeout: Duration | None
    wait_timeout: Duration | None
    queue: str | Queue | None
    key: str | None
    priority: int | None
    dedup_id: str | None
    on_duplicate: OnDuplicate
    on_full: OnFull
    delay: Duration | None
    start_at: datetime | None
    debounce: str | None
    max_delay: Duration | None
    attributes: Mapping[str, str] | None


class CheckedOptions(NamedTuple):
    """Options that were checked.

    Attributes:
        values: The given options by name, without those that are None. A queue is its name, a time span is in
            seconds, and attributes are a copy.
        native: The same options for the native engine.
    """

    values: dict[str, Any]
    native: _native.StartOptions

    def refuse(self, reasons: Mapping[str, str], place: str) -> None:
        """Raises an error if an option is given that this kind of start does not allow.

        Args:
            reasons: The options that the kind of start does not allow. Each text gives the reason and the
                remedy.
            place: The kind of start, such as `an outbox`, for the error message.

        Raises:
            InvalidArgument: Such an option is given.
        """
        for name, value in self.values.items():
            if name in reasons and not (name == "on_duplicate" and value == "reject"):
                raise InvalidArgument(f"{name} is {short_repr(value)}, and {place} {reasons[name]}")


def check_options(given: Mapping[str, Any]) -> CheckedOptions:
    """Checks the options of a start, and returns them.

    Args:
        given: The options by name; see `StartOptions`.

    Raises:
        InvalidArgument: An option is out of its bounds, or does not go with another one.
        TypeError: There is no such option.
    """
    values: dict[str, Any] = {}
    for name, value in given.items():
        check = _CHECKS.get(name)
        if check is None:
            known = ", ".join(_CHECKS)
            raise TypeError(f"{short_repr(name)} is not an option of starts; the options are {known}")
        if value is not None:
            values[name] = check(value)
    if len(values) > 1 or "workflow_id" not in values:
        _check_together(values)
    native: dict[str, Any] = values
    if "start_at" in values:
        native = {**values, "start_at": instant_micros("start_at", values["start_at"])}
    return CheckedOptions(values, _native.StartOptions(**native))


def _check_together(values: dict[str, Any]) -> None:
    """Checks options that need one another, or exclude one another."""
    if values.get("on_duplicate", "reject") != "reject" and "dedup_id" not in values:
        raise InvalidArgument(
            f"on_duplicate is {short_repr(values['on_duplicate'])}, and needs a dedup_id: give dedup_id= too"
        )
    if "queue" not in values:
        for name in ("key", "priority", "dedup_id", "debounce", "on_full"):
            if name in values and values[name] != "reject":
                raise InvalidArgument(
                    f"{name} is {short_repr(values[name])}, and needs a queue: give queue= too"
                )
    if "delay" in values and "start_at" in values:
        raise InvalidArgument("delay and start_at are both given: give one of them")
    if "debounce" in values and values.get("attributes"):
        raise InvalidArgument("debounce does not go with attributes: leave one of them out")


def _check_queue(value: Any) -> str:
    name = queue_name(value, "queue")
    if name == DEFAULT_QUEUE:
        raise InvalidArgument(
            f"queue is {DEFAULT_QUEUE!r}, which holds the executions without a queue: leave it out"
        )
    return name


def _check_start_at(value: Any) -> datetime:
    instant_micros("start_at", value)
    return cast("datetime", value)


def _id_check(what: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        bounds.check_name(what, value, bounds.MAX_ID_BYTES)
        return cast("str", value)

    return check


def _timeout_check(what: str) -> Callable[[Any], float | None]:
    return lambda value: to_timeout(what, value)


def _delay_check(what: str) -> Callable[[Any], float]:
    return lambda value: to_seconds(what, value, 0, MAX_DELAY)


def _choice_check(what: str, choices: tuple[str, ...]) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value not in choices:
            known = " or ".join(f'"{choice}"' for choice in choices)
            raise InvalidArgument(f"{what} is {short_repr(value)}, and must be {known}")
        return cast("str", value)

    return check


def _check_priority(value: Any) -> int:
    bounds.check_count("priority", value, -(2**31), 2**31 - 1)
    return int(value)


#: The function that checks each option, and returns its checked value.
_CHECKS: Final[dict[str, Callable[[Any], Any]]] = {
    "workflow_id": _id_check("workflow_id"),
    "execution_timeout": _timeout_check("execution_timeout"),
    "run_timeout": _timeout_check("run_timeout"),
    "wait_timeout": _timeout_check("wait_timeout"),
    "queue": _check_queue,
    "key": _id_check("key"),
    "priority": _check_priority,
    "dedup_id": _id_check("dedup_id"),
    "on_duplicate": _choice_check("on_duplicate", get_args(OnDuplicate)),
    "on_full": _choice_check("on_full", get_args(OnFull)),
    "delay": _delay_check("delay"),
    "start_at": _check_start_at,
    "debounce": _id_check("debounce"),
    "max_delay": _delay_check("max_delay"),
    "attributes": check_attributes,
}


__all__ = ["CheckedOptions", "OnDuplicate", "OnFull", "StartOptions", "check_options"]
