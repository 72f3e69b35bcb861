"""The names of functions, under which steps and workflows are recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepfast._validation.text import short_repr
from stepfast.errors import InvalidArgument


def qualified_name(function: Callable[..., Any]) -> str:
    """Returns the name under which a function is recorded: its qualified name, without the module.

    Raises:
        InvalidArgument: The value is no function.
    """
    if isinstance(function, classmethod | staticmethod):
        kind = "classmethod" if isinstance(function, classmethod) else "staticmethod"
        raise InvalidArgument(
            f"{function.__qualname__} is a {kind} already: write @{kind} above @step or @workflow"
        )
    name = getattr(function, "__qualname__", None)
    if not callable(function) or not isinstance(name, str):
        raise InvalidArgument(
            f"{short_repr(function)} is no function: steps and workflows are made of functions"
        )
    return name


def location_of(function: Callable[..., Any]) -> str:
    """Returns the module and qualified name of a function."""
    return f"{function.__module__}.{function.__qualname__}"
