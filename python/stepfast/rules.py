"""Rules: the conditions on which the tasks of a graph run.

A rule is evaluated when all dependencies of its task have ended. If it does not hold, the task is skipped.
Rules combine with `&`, `|` and `~`: `when=all_done() & ~failed("charge")`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal

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


class ComparedValue:
    """A value, or a field of it, of which a comparison makes a rule: `value("count") > 10`. Fields are those
    of dicts, dataclasses and models: `value("stats")["rows"] == 0`. See `value` and `context_value`.

    The rule does not hold if there is no value, or if the value has no such field. Values that have no order,
    such as a number and a text, differ, and neither is less than the other.
    """

    __slots__ = ("_fields", "_name", "_source")

    def __init__(
        self, source: Literal["value", "context_value"], name: str, fields: tuple[str, ...] = ()
    ) -> None:
        self._source: Literal["value", "context_value"] = source
        self._name: str = name
        self._fields: tuple[str, ...] = fields

    def __getitem__(self, field: str) -> ComparedValue:
        if not isinstance(field, str):  # pyright: ignore[reportUnnecessaryIsInstance] # for programs without types
            raise InvalidArgument(f"{short_repr(field)} is no name of a field of {self!r}: give a text")
        return ComparedValue(self._source, self._name, (*self._fields, field))

    def __eq__(self, literal: object) -> Rule:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
        return self._compare("==", literal)

    def __ne__(self, literal: object) -> Rule:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride]
        return self._compare("!=", literal)

    def __lt__(self, literal: object) -> Rule:
        return self._compare("<", literal)

    def __le__(self, literal: object) -> Rule:
        return self._compare("<=", literal)

    def __gt__(self, literal: object) -> Rule:
        return self._compare(">", literal)

    def __ge__(self, literal: object) -> Rule:
        return self._compare(">=", literal)

    def contains(self, literal: bool | int | float | str | None) -> Rule:
        """Returns the rule that the value contains the literal: as a part of a text, an element of a list, or
        a key of a dict.

        Args:
            literal: None, a bool, a number or a text.

        Raises:
            InvalidArgument: The literal is of another type.
        """
        return self._compare("contains", literal)

    def exists(self) -> Rule:
        """Returns the rule that the value exists, whatever it is: the task has succeeded, or the context has
        the key; and the value has the field."""
        return self._compare("exists", None)

    __hash__: ClassVar[None]  # type: ignore[assignment] # pyright: ignore[reportIncompatibleMethodOverride]

    def __bool__(self) -> bool:
        raise InvalidArgument(
            f"{self!r} is no rule yet: compare it, as in {self!r} > 0, and combine rules with & and |"
        )

    def _compare(self, operator: str, literal: Any) -> Rule:
        if not (literal is None or isinstance(literal, bool | int | float | str)):
            raise InvalidArgument(
                f"{self!r} is compared with {short_repr(literal)}, and must be compared with None, a bool, a "
                "number or a text"
            )
        if isinstance(literal, int) and not -(2**63) <= literal < 2**63:
            raise InvalidArgument(f"{self!r} is compared with {literal}, which does not fit into 64 bits")
        make_rule = Rule.value if self._source == "value" else Rule.context_value
        return make_rule(self._name, list(self._fields), operator, literal)

    def __repr__(self) -> str:
        return f'{self._source}("{self._name}")' + "".join(f'["{field}"]' for field in self._fields)


def value(task: Any) -> ComparedValue:
    """Returns the value of a task, of which a comparison makes a rule: `when=value("count") > 10`. The task
    becomes a dependency.

    Args:
        task: The task, or its name.
    """
    return ComparedValue("value", _name_of(task))


def context_value(key: str) -> ComparedValue:
    """Returns the value of a key of the context, of which a comparison makes a rule:
    `when=context_value("rows") > 10`. The rule sees the context that the task would read: the changes of the
    tasks on which it depends, directly or through others. The task fails if parallel tasks have written the
    key, and the graph does not merge their values.

    Args:
        key: The key, a text.

    Raises:
        InvalidArgument: The key is no text.
    """
    if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance] # for programs without types
        raise InvalidArgument(f"context key {short_repr(key)} is no text")
    return ComparedValue("context_value", key)


def _name_of(task: Any) -> str:
    name = task if isinstance(task, str) else getattr(task, "name", None)
    if not isinstance(name, str):
        raise InvalidArgument(f"{short_repr(task)} is no task: give the task, or its name")
    return name


__all__ = [
    "ComparedValue",
    "Rule",
    "all_done",
    "all_success",
    "always",
    "any_success",
    "context_value",
    "failed",
    "none_failed",
    "one_failed",
    "skipped",
    "succeeded",
    "value",
]
