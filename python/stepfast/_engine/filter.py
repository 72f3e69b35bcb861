"""Which executions a list is about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict

from stepfast._options.queue import Queue, name_of
from stepfast._validation import bounds
from stepfast._validation.attributes import check_attributes
from stepfast._validation.text import short_repr
from stepfast._validation.times import to_micros
from stepfast._workflow.binding import unbind
from stepfast._workflow.workflow import BoundWorkflow, Workflow
from stepfast.errors import InvalidArgument

#: As the engine takes it, in the order of `Filter`.
Told = tuple[
    list[str],
    str | None,
    bool | None,
    str | None,
    str | None,
    str | None,
    str | None,
    list[tuple[str, str]],
    int | None,
    int | None,
]


class Filter(TypedDict, total=False):
    """Which executions: those of which all holds that is given. None is as if it was not.

    Attributes:
        status: One status, or several: scheduled, queued, running, waiting, completed, failed, cancelled.
        workflow: Only of this workflow, which may be given by its name.
        is_parked: Only those that are parked, or only those that are not.
        parent: Only children of the execution with this workflow_id.
        id_prefix: Only those whose workflow_id begins so.
        app_version: Only those that are pinned to this version of the code.
        queue: Only those that stand in this queue whenever they are queued; what has no queue is in
            "default".
        attributes: Only those that have all of these attributes.
        created_from: Only those whose start was called at this time or later; a time without a zone is local.
        created_before: Only those whose start was called before this time.
    """

    status: str | Iterable[str] | None
    workflow: Workflow[..., Any] | BoundWorkflow[..., Any] | str | None
    is_parked: bool | None
    parent: str | None
    id_prefix: str | None
    app_version: str | None
    queue: str | Queue | None
    attributes: Mapping[str, str] | None
    created_from: datetime | None
    created_before: datetime | None


@dataclass(frozen=True, slots=True)
class Answers:
    """What has come of asking many executions for something.

    Attributes:
        done: So many are cancelled, or go on.
        requested: Of so many it is recorded, and the workers that run them will do it.
        declined: So many are not in a state for that.
    """

    done: int
    requested: int
    declined: int


def told(filter: Filter) -> Told:
    """The filter as the engine takes it.

    Raises:
        InvalidArgument: A value is none that it can have.
        TypeError: There is no such condition.
    """
    unknown = filter.keys() - Filter.__annotations__.keys()
    if unknown:
        known = ", ".join(Filter.__annotations__)
        raise TypeError(f"{short_repr(min(unknown))} is none of the conditions that there are: {known}")
    status, workflow, queue = filter.get("status"), filter.get("workflow"), filter.get("queue")
    attributes, is_parked = filter.get("attributes"), filter.get("is_parked")
    if is_parked is not None:
        bounds.check_flag("is_parked", is_parked)
    named: str | None = workflow_name(workflow) if callable(workflow) else workflow
    for what, given in (
        ("workflow", named),
        ("parent", filter.get("parent")),
        ("id_prefix", filter.get("id_prefix")),
        ("app_version", filter.get("app_version")),
    ):
        if given is not None:
            bounds.check_storable_text(what, given)
    return (
        statuses(status),
        named,
        is_parked,
        filter.get("parent"),
        filter.get("id_prefix"),
        filter.get("app_version"),
        None if queue is None else name_of(queue),
        [] if attributes is None else list(check_attributes(attributes).items()),
        checked_time("created_from", filter.get("created_from")),
        checked_time("created_before", filter.get("created_before")),
    )


def statuses(given: Any) -> list[str]:
    """The statuses of a filter, of which one may be given by itself.

    Raises:
        InvalidArgument: They are no texts.
    """
    if given is None or isinstance(given, str):
        listed: list[Any] = [] if given is None else [given]
    elif hasattr(given, "__iter__"):
        listed = list(given)
    else:
        raise InvalidArgument(f"status is {short_repr(given)}, and must be a status, or a list of some")
    for each in listed:
        bounds.check_name("status", each)
    return listed


def workflow_name(workflow: Callable[..., Any]) -> str:
    """The name under which a workflow is recorded.

    Raises:
        InvalidArgument: It is no workflow.
    """
    found, _ = unbind(workflow, ())
    if not isinstance(found, Workflow):
        raise InvalidArgument(f"{short_repr(workflow)} is no workflow")
    return found.name


def checked_time(what: str, at: Any) -> int | None:
    """A point in time, in microseconds since 1970.

    Raises:
        InvalidArgument: It is something else.
    """
    if at is not None and not isinstance(at, datetime):
        raise InvalidArgument(f"{what} is {short_repr(at)}, and must be a datetime")
    try:
        return to_micros(at)
    except (ValueError, OverflowError):
        # its own zone, or that of this machine, leads out of the calendar
        raise InvalidArgument(
            f"{what} is {short_repr(at)}, and must be a datetime of the years 2 to 9998"
        ) from None


__all__ = ["Answers", "Filter"]
