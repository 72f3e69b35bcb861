"""`Context`: the values that the tasks of a graph share by key."""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic

from stepfast._graph.context_values.fields import ContextFields, fields_of
from stepfast._graph.context_values.fields_view import AttributeView, ItemView
from stepfast._validation.text import short_repr
from stepfast._values.decoder import decode
from stepfast._values.encoder import encode
from stepfast.errors import InvalidArgument

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    S = TypeVar("S", default=Any)
else:
    from typing import TypeVar

    S = TypeVar("S")

#: Values of these types cannot change, so that they need no copy.
_UNCHANGEABLE: Final = (str, int, float, bool, bytes, type(None))
#: The text of an annotation that names a context, and perhaps its class.
_CONTEXT_TEXT: Final = re.compile(r"['\"]?(?:\w+\.)*Context(?:\[.*\])?['\"]?")


class Context(Generic[S]):
    """The values that the tasks of a graph share by key. A task that has a parameter with the annotation
    `Context` receives the values that the tasks before it have written, and those of the input `context`.

    The changes of a task are recorded when the task has succeeded; those of a failed attempt are dropped.
    Each read returns a copy, so a change of a list or a dict takes effect with `set` or `update` only.

    The annotation may name a class, as in `Context[Stats]`: a dataclass, a pydantic model, an attrs or
    msgspec class, or a TypedDict. Then the keys of the graph's context are the fields of this class. A write
    checks the key and the value: pydantic validates the value by the field, and for other classes the value
    must be an instance of the annotated type. The items of containers are not checked. For tests, a call of
    `Context[Stats]` returns a context.

    Args:
        values: The first values by key; none by default.

    Raises:
        InvalidArgument: A key is no field of the class, or the field rejects the value.
    """

    __slots__ = ("_changes", "_class_fields", "_place", "_values")

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values: dict[str, Any] = {} if values is None else dict(values)
        #: The keys that this task has written or removed.
        self._changes: set[str] = set()
        #: The fields of the class; None if the annotations of the graph name no class.
        self._class_fields: ContextFields | None = None
        #: The place of the context for error messages: its task, or an empty text.
        self._place: str = ""

    if not TYPE_CHECKING:

        def __class_getitem__(cls, given):
            arguments = given if isinstance(given, tuple) else (given,)
            if len(arguments) != 1:
                raise TypeError(f"a context has one class, and not {len(arguments)}")
            return _TypedContext(cls, arguments)

    @property
    def fields(self) -> S:
        """The context as an object of the class that the annotation names. `context.fields.count = 3` writes
        a key, and `context.fields.count` reads it. If the key does not exist, a read returns the default of
        the field. The object has the fields of the class, but not its methods. The fields of a TypedDict are
        items: `context.fields["count"]`. If no task names a class, the context raises `InvalidArgument`.
        """
        if self._class_fields is None:
            raise InvalidArgument(
                f"the context{self._place} has no fields: name a class in the annotation, Context[Stats]"
            )
        view: Any = (
            ItemView(self) if self._class_fields.has_items else AttributeView(self, self._class_fields)
        )
        return view  # type: ignore[no-any-return] # has the fields of the class

    def insert(self, key: str, value: Any) -> None:
        """Adds a new key.

        Args:
            key: The key.
            value: The value, which must be recordable.

        Raises:
            InvalidArgument: The key exists already, is no text, or is no field of the class; or the field
                rejects the value.
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
            InvalidArgument: The key is no field of the class, or the field rejects the value.
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
            InvalidArgument: The key is no text, or is no field of the class; or the field rejects the value.
            EncodeError: The value cannot be recorded.
        """
        if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance] # for programs without types
            raise InvalidArgument(f"context key {short_repr(key)} is no text")
        if self._class_fields is not None:
            value = self._class_fields.checked(key, value, self._values, self._place)
        self._values[key] = _copy(value, key)
        self._changes.add(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Returns the value of a key.

        Args:
            key: The key.
            default: The value if the key does not exist; None by default.

        Raises:
            InvalidArgument: The key does not exist, and is no field of the class.
        """
        if key in self._values:
            return _copy(self._values[key], key)
        self._check_key(key)
        return default

    def remove(self, key: str) -> Any:
        """Removes a key, and returns its value.

        Args:
            key: The key.

        Raises:
            KeyError: The key does not exist.
            InvalidArgument: The key does not exist, and is no field of the class.
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
            self._check_key(key)
            keys = ", ".join(repr(each) for each in sorted(self._values)) or "none"
            raise KeyError(f"the context has no key {key!r}; its keys are: {keys}")

    def _check_key(self, key: str) -> None:
        if self._class_fields is not None:
            self._class_fields.check_key(key, self._place)

    def changes(self) -> dict[str, Any]:
        """Returns the changes of the task for its record: the values by key, and the removed keys."""
        return {
            "set": {key: self._values[key] for key in sorted(self._changes) if key in self._values},
            "removed": sorted(key for key in self._changes if key not in self._values),
        }


class _TypedContext(types.GenericAlias):
    """The annotation `Context[Stats]`. A call of it makes a context with the fields of the class."""

    def __call__(self, values: Mapping[str, Any] | None = None) -> Context[Any]:
        fields = fields_of(self.__args__[0])
        given: Mapping[str, Any] = values or {}
        return TaskContext({key: fields.checked(key, given[key], given, "") for key in given}, fields, "")


class TaskContext(Context[Any]):
    """The context of a task, with values that its graph has checked.

    Args:
        values: The values by key.
        fields: The fields of the class; None if the context has no class.
        place: The place of the context for error messages: " of task 'load' of graph 'etl'".
    """

    __slots__ = ()

    def __init__(self, values: Mapping[str, Any], fields: ContextFields | None, place: str) -> None:
        super().__init__(values)
        self._class_fields, self._place = fields, place


def _copy(value: Any, key: str) -> Any:
    if type(value) in _UNCHANGEABLE:
        return value
    return decode(encode(value, path=f"context key {key!r}"))


def context_parameter(function: Callable[..., Any]) -> str | None:
    """Returns the name of a function's parameter with the annotation `Context`, or `Context` of a class; None
    if the function has none.

    Raises:
        InvalidArgument: Several parameters have such an annotation.
    """
    parameters = inspect.signature(function).parameters.values()
    names = [parameter.name for parameter in parameters if _is_context(parameter.annotation)]
    if len(names) > 1:
        raise InvalidArgument(
            f"the parameters {names[0]!r} and {names[1]!r} of {_name_of(function)} both take the context: "
            "leave one of them out"
        )
    return names[0] if names else None


def _name_of(function: Callable[..., Any]) -> str:
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else short_repr(function)


def _is_context(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return _CONTEXT_TEXT.fullmatch(annotation) is not None
    return annotation is Context or isinstance(annotation, _TypedContext)


def recording_changes(
    function: Callable[..., Any], parameter: str, make_context: Callable[[dict[str, Any]], Context[Any]]
) -> Callable[..., Any]:
    """Returns the body of a task that takes a context. Each call gets a context of its own, and returns the
    task's value with the changes of the context.

    Args:
        function: The function of the task.
        parameter: The name of its parameter that takes the context.
        make_context: Returns a context with values by key.
    """

    def begin(kwargs: dict[str, Any]) -> Context[Any]:
        kwargs[parameter] = context = make_context(kwargs[parameter])
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


__all__ = ["Context", "TaskContext", "context_parameter", "recording_changes"]
