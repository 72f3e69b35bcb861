"""Names of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepfast._validation.text import shown
from stepfast.errors import Invalid


def qualified(function: Callable[..., Any]) -> str:
    """The name under which a function is recorded: its qualified name, without the module.

    Raises:
        Invalid: It is no function.
    """
    if isinstance(function, classmethod | staticmethod):
        kind = "classmethod" if isinstance(function, classmethod) else "staticmethod"
        raise Invalid(f"{function.__qualname__} is a {kind} already: write @{kind} above @step or @workflow")
    name = getattr(function, "__qualname__", None)
    if not callable(function) or not isinstance(name, str):
        raise Invalid(f"{shown(function)} is no function: steps and workflows are made of functions")
    return name


def where(function: Callable[..., Any]) -> str:
    """Where a function is defined."""
    return f"{function.__module__}.{function.__qualname__}"
