"""`Context`: the values that the tasks of a graph share by key."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from stepfast._validation.text import short_repr
from stepfast._values.decoder import decode
from stepfast._values.encoder import encode
from stepfast.errors import InvalidArgument

#: Values of these types cannot change, so that they need no copy.
_UNCHANGEABLE: Final = (str, int, float, bool, bytes, type(None))


class Context:
    """The values that the tasks of a graph share by key. A task that has a parameter with the annotation
    `Context` receives the values that the tasks before it have written, and those of the input `context`.

    The changes of a task are recorded when the task has succeeded; those of a failed attempt are dropped.
    Each read returns a copy, so a change of a list or a dict takes effect with `set` or `update` only.
    """

    __slots__ = ("_changes", "_values")

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values: dict[str, Any] = {} if values is None else dict(values)
        #: The keys that this task has written or removed.
        self._changes: set[str] = set()

    def insert(self, key: str, value: Any) -> None:
        """Adds a new key.

        Args:
            key: The key.
            value: The value, which must be recordable.

        Raises:
            InvalidArgument: The key exists already, or is no text.
            EncodeError: The value cannot be recorded.
        """
        if key in self._values:
            raise InvalidArgument(
                f"context key {key!r} exists already, with {short_repr(self._values[key])}: use update or set"
            )
        self.set(key, value)

    def update(self, key: str, value: Any) -> None:
        """Replaces the value of a key.

        Args:
            key: The key.
            value: The value, which must be recordable.

        Raises:
            KeyError: The key does not exist.
            EncodeError: The value cannot be recorded.
        """
        self._require(key)
        self.set(key, value)

    def set(self, key: str, value: Any) -> None:
        """Adds a key, or replaces its value.

        Args:
            key: The key.
            value: The value, which must be recordable.

        Raises:
            InvalidArgument: The key is no text.
            EncodeError: The value cannot be recorded.
        """
        if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance] # for programs without types
            raise InvalidArgument(f"context key {short_repr(key)} is no text")
        self._values[key] = _copy(value, key)
        self._changes.add(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Returns the value of a key.

        Args:
            key: The key.
            default: The value if the key does not exist; None by default.
        """
        return _copy(self._values[key], key) if key in self._values else default

    def remove(self, key: str) -> Any:
        """Removes a key, and returns its value.

        Args:
            key: The key.

        Raises:
            KeyError: The key does not exist.
        """
        self._require(key)
        self._changes.add(key)
        return self._values.pop(key)

    def to_dict(self) -> dict[str, Any]:
        """Returns the values by key, as a copy."""
        return {key: _copy(value, key) for key, value in self._values.items()}

    def __getitem__(self, key: str) -> Any:
        self._require(key)
        return _copy(self._values[key], key)

    def __setitem__(self, key: str, value: Any) -> None:
        self.set(key, value)

    def __delitem__(self, key: str) -> None:
        self.remove(key)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._values))

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Context({self._values!r})"

    def _require(self, key: str) -> None:
        if key not in self._values:
            keys = ", ".join(repr(each) for each in sorted(self._values)) or "none"
            raise KeyError(f"the context has no key {key!r}; its keys are: {keys}")

    def changes(self) -> dict[str, Any]:
        """Returns the changes of the task for its record: the values by key, and the removed keys."""
        return {
            "set": {key: self._values[key] for key in sorted(self._changes) if key in self._values},
            "removed": sorted(key for key in self._changes if key not in self._values),
        }


def _copy(value: Any, key: str) -> Any:
    if type(value) in _UNCHANGEABLE:
        return value
    return decode(encode(value, path=f"context key {key!r}"))


def context_parameter(function: Callable[..., Any]) -> str | None:
    """Returns the name of a function's parameter with the annotation `Context`; None if it has none."""
    for name, parameter in inspect.signature(function).parameters.items():
        annotation = parameter.annotation
        if annotation is Context:
            return name
        if isinstance(annotation, str) and annotation.rpartition(".")[2].strip("'\"") == "Context":
            return name
    return None


def recording_changes(function: Callable[..., Any], parameter: str) -> Callable[..., Any]:
    """Returns the body of a task that takes a context. Each call gets a context of its own, and returns the
    task's value with the changes of the context.

    Args:
        function: The function of the task.
        parameter: The name of its parameter that takes the context.
    """

    def begin(kwargs: dict[str, Any]) -> Context:
        kwargs[parameter] = context = Context(kwargs[parameter])
        return context

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_async(**kwargs: Any) -> dict[str, Any]:
            context = begin(kwargs)
            return {"value": await function(**kwargs), **context.changes()}

        return run_async

    @functools.wraps(function)
    def run(**kwargs: Any) -> dict[str, Any]:
        context = begin(kwargs)
        return {"value": function(**kwargs), **context.changes()}

    return run


__all__ = ["Context", "context_parameter", "recording_changes"]
