"""Splits the value that a caller passed as the workflow to start."""

from __future__ import annotations

import inspect
from types import MethodType
from typing import Any, NamedTuple, cast

from stepfast._options.start_options import CheckedOptions
from stepfast._validation.text import short_repr
from stepfast._workflow.remote import RemoteWorkflow
from stepfast._workflow.workflow import BoundWorkflow, ConfiguredWorkflow
from stepfast.errors import InvalidArgument


class StartTarget(NamedTuple):
    """The parts of the value that a caller passed as the workflow to start.

    Attributes:
        workflow: The `Workflow` or the `RemoteWorkflow`. If the caller has given no workflow, the given
            value.
        bound_args: The object to which a method is bound, which is its first argument; empty for other
            workflows.
        options: The options of the start; None if the caller has given none.
    """

    workflow: Any
    bound_args: tuple[Any, ...]
    options: CheckedOptions | None


def start_target(given: Any) -> StartTarget:
    """Splits the value that a caller passed as the workflow to start.

    Returns the workflow, the object to which it is bound, and its options.
    """
    if isinstance(given, ConfiguredWorkflow):
        configured = cast("ConfiguredWorkflow[..., Any]", given)
        return StartTarget(configured.workflow, configured.bound_args, configured.start_options)
    if isinstance(given, BoundWorkflow):
        bound = cast("BoundWorkflow[..., Any]", given)
        return StartTarget(bound.workflow, (bound.instance,), None)
    if isinstance(given, RemoteWorkflow):
        remote = cast("RemoteWorkflow[..., Any]", given)
        return StartTarget(remote, (), remote.start_options)
    if isinstance(given, MethodType):
        # a workflow that is a classmethod, in Python 3.13 and later
        return StartTarget(given.__func__, (given.__self__,), None)
    return StartTarget(given, (), None)


def no_workflow_error(value: Any, advice: str) -> InvalidArgument:
    """Returns the error for a value that was given as a workflow, but is not a workflow.

    Args:
        value: The value. A coroutine is closed.
        advice: What the caller should give instead, for the error message.
    """
    if inspect.iscoroutine(value):
        # closed, because no code will await the coroutine
        value.close()
    if isinstance(value, str):
        return InvalidArgument(
            f"{short_repr(value)} is text: for a workflow by its name write "
            f"RemoteWorkflow({short_repr(value)})"
        )
    return InvalidArgument(f"{short_repr(value)} is no workflow: {advice}")


__all__ = ["StartTarget", "no_workflow_error", "start_target"]
