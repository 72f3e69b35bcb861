"""Workflows that are methods, and their first argument."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any, cast

from stepfast._workflow.workflow import BoundWorkflow


def unbind(workflow: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The workflow itself and all of its arguments, if it is a method."""
    if isinstance(workflow, BoundWorkflow):
        bound = cast("Any", workflow)
        return bound.workflow, (bound.instance, *args)
    if isinstance(workflow, MethodType):
        # a classmethod, in Python 3.13 and newer
        function: Any = workflow.__func__
        return function, (workflow.__self__, *args)
    return workflow, args
