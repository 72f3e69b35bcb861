"""Which executions a list is about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict

from stepfast.attributes import checked
from stepfast.errors import Invalid
from stepfast.options import unbound
from stepfast.queue import Queue, name_of
from stepfast.records import micros
from stepfast.workflow import BoundWorkflow, Workflow

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
        created_from: Only those accepted at this time or later; a time without a zone is local.
        created_before: Only those accepted before this time.
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
        Invalid: A value is none that it can have.
        TypeError: There is no such condition.
    """
    unknown = filter.keys() - Filter.__annotations__.keys()
    if unknown:
        known = ", ".join(Filter.__annotations__)
        raise TypeError(f"{min(unknown)!r} is none of the conditions that there are: {known}")
    status, workflow, queue = filter.get("status"), filter.get("workflow"), filter.get("queue")
    attributes = filter.get("attributes")
    return (
        [status] if isinstance(status, str) else list(status or ()),
        workflow_name(workflow) if callable(workflow) else workflow,
        filter.get("is_parked"),
        filter.get("parent"),
        filter.get("id_prefix"),
        filter.get("app_version"),
        None if queue is None else name_of(queue),
        [] if attributes is None else list(checked(attributes).items()),
        micros(checked_time("created_from", filter.get("created_from"))),
        micros(checked_time("created_before", filter.get("created_before"))),
    )


def workflow_name(workflow: Callable[..., Any]) -> str:
    """The name under which a workflow is recorded.

    Raises:
        Invalid: It is no workflow.
    """
    found, _ = unbound(workflow, ())
    if not isinstance(found, Workflow):
        raise Invalid(f"{workflow!r} is no workflow")
    return found.name


def checked_time(what: str, at: Any) -> datetime | None:
    """Refuses what is no point in time.

    Raises:
        Invalid: It is something else.
    """
    if at is not None and not isinstance(at, datetime):
        raise Invalid(f"{what} is {at!r}, and must be a datetime")
    return at


__all__ = ["Answers", "Filter"]
