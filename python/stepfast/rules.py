"""Rules: the conditions on which the tasks of a graph run.

A rule is evaluated when all dependencies of its task have ended. If it does not hold, the task is skipped.
Rules combine with `&`, `|` and `~`: `when=all_done() & ~failed("charge")`.
"""

from __future__ import annotations

from typing import Any, Final

from stepfast._native import Rule
from stepfast._validation.text import short_repr
from stepfast.errors import InvalidArgument

_ALL_SUCCESS: Final = Rule("all_success")
_ALL_DONE: Final = Rule("all_done")
_ANY_SUCCESS: Final = Rule("any_success")
_ONE_FAILED: Final = Rule("one_failed")
_NONE_FAILED: Final = Rule("none_failed")


def all_success() -> Rule:
    """Every dependency has succeeded. The default rule."""
    return _ALL_SUCCESS


def all_done() -> Rule:
    """Every dependency has ended: it has succeeded, has failed or was skipped."""
    return _ALL_DONE


def always() -> Rule:
    """The same as `all_done`."""
    return _ALL_DONE


def any_success() -> Rule:
    """At least one dependency has succeeded."""
    return _ANY_SUCCESS


def one_failed() -> Rule:
    """At least one dependency has failed."""
    return _ONE_FAILED


def none_failed() -> Rule:
    """No dependency has failed: each has succeeded or was skipped."""
    return _NONE_FAILED


def succeeded(task: Any) -> Rule:
    """The task has succeeded. It becomes a dependency.

    Args:
        task: The task, or its name.
    """
    return Rule.succeeded(_name_of(task))


def failed(task: Any) -> Rule:
    """The task has failed, after all its retries. It becomes a dependency.

    Args:
        task: The task, or its name.
    """
    return Rule.failed(_name_of(task))


def skipped(task: Any) -> Rule:
    """The task was skipped. It becomes a dependency.

    Args:
        task: The task, or its name.
    """
    return Rule.skipped(_name_of(task))


def _name_of(task: Any) -> str:
    name = task if isinstance(task, str) else getattr(task, "name", None)
    if not isinstance(name, str):
        raise InvalidArgument(f"{short_repr(task)} is no task: give the task, or its name")
    return name


__all__ = [
    "Rule",
    "all_done",
    "all_success",
    "always",
    "any_success",
    "failed",
    "none_failed",
    "one_failed",
    "skipped",
    "succeeded",
]
