"""Filters, which select executions for lists, counts and bulk operations, and results of bulk operations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict

from stepfast._engine.status import Status, StatusText
from stepfast._options.queue import Queue, queue_name
from stepfast._validation import bounds
from stepfast._validation.attributes import check_attributes
from stepfast._validation.text import short_repr
from stepfast._validation.times import instant_micros
from stepfast._workflow.remote import RemoteWorkflow
from stepfast._workflow.start_target import start_target
from stepfast._workflow.startable import Startable
from stepfast._workflow.workflow import Workflow
from stepfast.errors import InvalidArgument

#: A filter for the native engine: the conditions in the order of `Filter`.
FilterTuple = tuple[
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
    """Conditions that select executions. An execution is selected if it meets all given conditions. None is
    the same as leaving the condition out.

    Attributes:
        status: Executions with this status, or with one of several statuses in a list. Each is a `Status` or
            its text.
        workflow: Executions of this workflow, given as the workflow or as its name.
        is_parked: True for parked executions, False for all others.
        parent: Children of the execution with this workflow_id.
        id_prefix: Executions whose workflow_id begins with this text.
        app_version: Executions that only workers with this version of the code run.
        queue: Executions of this queue, whatever their status is. Executions without a queue are in
            `default`.
        attributes: Executions with all of these attributes.
        created_from: Executions whose start was called at this time or later: a datetime with a time zone.
        created_before: Executions whose start was called before this time: a datetime with a time zone.
    """

    status: Status | StatusText | Iterable[Status | StatusText] | None
    workflow: Startable[..., Any] | str | None
    is_parked: bool | None
    parent: str | None
    id_prefix: str | None
    app_version: str | None
    queue: str | Queue | None
    attributes: Mapping[str, str] | None
    created_from: datetime | None
    created_before: datetime | None


@dataclass(frozen=True, slots=True)
class BulkResult:
    """The result of a cancel or a resume of many executions.

    Attributes:
        done: The number of executions that are cancelled already, or that continue already.
        pending: The number of running executions whose workers will handle the request, which is recorded.
        not_applicable: The number of executions whose status does not allow the operation.
    """

    done: int
    pending: int
    not_applicable: int

    @classmethod
    def __stepfast_upgrade__(cls, fields: dict[str, Any]) -> dict[str, Any]:
        # earlier programs have recorded the fields under these names
        renamed = {"requested": "pending", "declined": "not_applicable"}
        return {renamed.get(name, name): value for name, value in fields.items()}


def filter_tuple(filter: Filter) -> FilterTuple:
    """Converts a filter for the native engine.

    Raises:
        InvalidArgument: A condition has a value that it cannot have.
        TypeError: There is no such condition.
    """
    unknown = filter.keys() - Filter.__annotations__.keys()
    if unknown:
        known = ", ".join(Filter.__annotations__)
        raise TypeError(f"{short_repr(min(unknown))} is not a condition; the conditions are {known}")
    workflow, queue = filter.get("workflow"), filter.get("queue")
    attributes, is_parked = filter.get("attributes"), filter.get("is_parked")
    if is_parked is not None:
        bounds.check_flag("is_parked", is_parked)
    name = workflow if workflow is None or isinstance(workflow, str) else workflow_name(workflow)
    for what, given in (
        ("workflow", name),
        ("parent", filter.get("parent")),
        ("id_prefix", filter.get("id_prefix")),
        ("app_version", filter.get("app_version")),
    ):
        if given is not None:
            bounds.check_storable_text(what, given)
    return (
        _status_texts(filter.get("status")),
        name,
        is_parked,
        filter.get("parent"),
        filter.get("id_prefix"),
        filter.get("app_version"),
        None if queue is None else queue_name(queue, "queue"),
        [] if attributes is None else list(check_attributes(attributes).items()),
        _checked_micros("created_from", filter.get("created_from")),
        _checked_micros("created_before", filter.get("created_before")),
    )


def _status_texts(given: Any) -> list[str]:
    """Returns the statuses of a filter as texts. A single status may be given without a list."""
    if given is None or isinstance(given, str):
        listed: list[Any] = [] if given is None else [given]
    elif hasattr(given, "__iter__"):
        listed = list(given)
    else:
        raise InvalidArgument(f"status is {short_repr(given)}, and must be a status, or a list of them")
    for status in listed:
        bounds.check_name("status", status)
    return listed


def workflow_name(workflow: Any) -> str:
    """Returns the name under which a workflow is recorded.

    Raises:
        InvalidArgument: The value is no workflow.
    """
    found: object = start_target(workflow).workflow
    if isinstance(found, Workflow | RemoteWorkflow):
        return found.name
    raise InvalidArgument(f"workflow is {short_repr(workflow)}, and must be a workflow")


def _checked_micros(what: str, at: Any) -> int | None:
    """Converts a time of a filter to microseconds since 1970; None stays None."""
    return None if at is None else instant_micros(what, at, "datetime.now(timezone.utc) - timedelta(hours=1)")


__all__ = ["BulkResult", "Filter"]
