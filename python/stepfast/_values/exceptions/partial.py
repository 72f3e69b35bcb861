"""Exceptions that can be recorded only in part, for example because they hold a connection or a response of a
library.

Such an exception is rebuilt without its constructor, with the recorded text, arguments and attributes. Code
that reads another attribute gets an `AttributeError` with advice. For this error, and because a `__str__` may
read missing attributes, the rebuilt exception is an instance of a hidden subclass of its class.
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from ..codec import ClassFinder
from ..errors import NotRecordable, text_of, to_unicode
from ..references import name_of
from .graph import members_of
from .state import make_exception, state_of

#: The key of a node's attributes for an exception that was recorded in part.
PART: Final = "part"
#: The attribute with the `Part` of an instance of a hidden subclass.
_MARK: Final = "__stepfast_part__"
#: The classes of objects that exceptions of libraries hold. The attributes beside a class are recorded in
#: place of the object.
_STAND_IN_ATTRIBUTES: Final[dict[str, tuple[str, ...]]] = {
    "httpx:Request": ("method",),
    "httpx:Response": ("status_code",),
    "httpx2:Request": ("method",),
    "httpx2:Response": ("status_code",),
    "requests.models:Request": ("method", "url"),
    "requests.models:PreparedRequest": ("method", "url"),
    "requests.models:Response": ("status_code", "reason", "url", "encoding"),
}
_PLAIN_TYPES: Final = (type(None), bool, int, float, str)
#: The hidden subclasses, by the class from which each derives.
_hidden_subclasses: Final[dict[type, type]] = {}


@dataclass(frozen=True, slots=True)
class Part:
    """The marker of an object that was recorded in part.

    Attributes:
        text: The text of the object.
        missing: The names of the attributes that could not be recorded.
    """

    text: str
    missing: tuple[str, ...]


def part_of(value: object) -> Part | None:
    """Returns the marker of an object that was recorded in part; None for any other object."""
    return cast("Part | None", getattr(value, "__dict__", {}).get(_MARK))


def partial_node(error: BaseException, is_recordable: Callable[[Any], bool]) -> list[Any]:
    """Returns the node of an exception, with the attributes that can be recorded.

    Args:
        error: The exception.
        is_recordable: A function that returns whether a value can be recorded.

    Raises:
        NotRecordable: No instance of the class can be made.
    """
    part = part_of(error)
    cls = _class_of(error)
    name = name_of(cls)
    state, attributes = state_of(error)
    attributes.pop(_MARK, None)
    text = text_of(error) if part is None else part.text
    args = state.pop("args")
    if not is_recordable(args):
        args = (text,)
    missing = [] if part is None else list(part.missing)
    stand_ins: dict[str, Any] = {}
    for section in (state, attributes):
        for each, value in list(section.items()):
            is_stand_in = part_of(value) is not None and not isinstance(value, BaseException)
            if not is_stand_in and is_recordable(value):
                continue
            del section[each]
            stand_in = _reduce_stand_in(value)
            if stand_in is None:
                missing.append(each)
            else:
                stand_ins[each] = stand_in
    try:
        _make(cls, text, args, state, attributes, missing, members_of(error))
    except Exception as failure:
        raise NotRecordable(f"an exception of this class cannot be made again ({failure})") from failure
    return [name, None, {PART: [text, args, state, attributes, stand_ins, missing]}]


def read_partial_exception(
    cls: type[BaseException], recorded: list[Any], members: tuple[BaseException, ...], finder: ClassFinder
) -> BaseException:
    """Rebuilds an exception that was recorded in part."""
    text, args, state, attributes, stand_ins, missing = recorded
    found: dict[str, object] = {}
    for name, stand_in in stand_ins.items():
        try:
            found[name] = _read_stand_in(stand_in, finder)
        except Exception:
            # the class of the attribute's value is not found here
            missing = [*missing, name]
    return _make(cls, text, args, state, {**attributes, **found}, missing, members)


def _make(
    cls: type[BaseException],
    text: str,
    args: tuple[Any, ...],
    state: dict[str, Any],
    attributes: dict[str, Any],
    missing: list[str],
    members: tuple[BaseException, ...],
) -> BaseException:
    marked = {**attributes, _MARK: Part(text, tuple(missing))}
    return make_exception(_hidden_subclass(cls), {"args": args, **state}, marked, members)


def _class_of(value: object) -> Any:
    """Returns the class of an object. For an instance of a hidden subclass, returns the class from which that
    one derives."""
    cls = type(value)
    return cls if part_of(value) is None else cls.__mro__[1]


def _reduce_stand_in(value: object) -> list[Any] | None:
    """Returns the recordable parts of an object that an exception holds.

    Returns None if the class of the object is not in `_STAND_IN_ATTRIBUTES`, or has no recordable name.
    """
    part = part_of(value)
    cls = _class_of(value)
    names = _STAND_IN_ATTRIBUTES.get(f"{cls.__module__}:{cls.__qualname__}")
    if names is None:
        return None
    try:
        name = name_of(cls)
    except NotRecordable:
        return None
    state = {each: item for each, item in vars(value).items() if each in names and type(item) in _PLAIN_TYPES}
    if part is not None:
        return [name, state, part.text, list(part.missing)]
    return [name, state, to_unicode(repr(value)), [each for each in vars(value) if each not in state]]


def _read_stand_in(recorded: list[Any], finder: ClassFinder) -> object:
    name, state, text, missing = recorded
    made: object = object.__new__(_hidden_subclass(finder.find(name)))
    made.__dict__.update(state)
    made.__dict__[_MARK] = Part(text, tuple(missing))
    return made


def _hidden_subclass(cls: type[Any]) -> type[Any]:
    """Returns the subclass whose instances stand for instances of a class that were recorded in part.

    Raises:
        NotRecordable: The class runs code of its own when a subclass of it is made.
    """
    known = _hidden_subclasses.get(cls)
    if known is None:
        known = _hidden_subclasses[cls] = _make_hidden_subclass(cls)
    return known


def _make_hidden_subclass(cls: type[Any]) -> type[Any]:
    metaclass: Any = type(cls)
    own_hooks = (base for base in cls.__mro__ if "__init_subclass__" in vars(base))
    if metaclass not in (type, abc.ABCMeta) or any(
        base is not object and base.__module__ != "typing" for base in own_hooks
    ):
        raise NotRecordable("its class tracks its subclasses")
    namespace: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__getattr__": _missing_attribute,
        "__str__": _text,
        "__repr__": _text if not issubclass(cls, BaseException) else _exception_repr,
        "__reduce__": _reduce_for_copies,
    }
    if f"{cls.__module__}:{cls.__qualname__}" in _STAND_IN_ATTRIBUTES:
        # the class's own property `content` may mistake a missing body for a body that was not read yet
        namespace["content"] = property(_missing_body)
    made: type[Any] = metaclass(cls.__name__, (cls,), namespace)
    return made


def _missing_attribute(self: object, name: str) -> object:
    """The `__getattr__` of hidden subclasses."""
    cls = type(self)
    part = part_of(self)
    text = f"{cls.__qualname__!r} object has no attribute {name!r}"
    # an object whose class has a `__getattr__` of its own may have any attribute
    may_exist = hasattr(cls, name) or hasattr(cls.__mro__[1], "__getattr__")
    if part is not None and (name in part.missing or may_exist) and not name.startswith("__"):
        text += (
            ": it could not be recorded with the exception. Read it in the step, and raise an exception or "
            "return a value with what the workflow needs of it"
        )
    raise AttributeError(text, name=name)


def _missing_body(self: object) -> object:
    """The getter of the property `content` of responses and requests. It raises `AttributeError`, so Python
    calls `__getattr__`."""
    raise AttributeError


def _text(self: object) -> str:
    part = part_of(self)
    return "" if part is None else part.text


def _exception_repr(self: object) -> str:
    return f"{type(self).__name__}({_text(self)!r})"


def _reduce_for_copies(self: Any) -> tuple[Any, ...]:
    """The `__reduce__` of hidden subclasses. With it, `copy` and `pickle` rebuild an object."""
    cls = type(self).__mro__[1]
    if not issubclass(cls, BaseException):
        return _copy_stand_in, (cls, self.__dict__.copy())
    state, attributes = state_of(self)
    return _copy_exception, (cls, state, attributes, members_of(self))


def _copy_exception(
    cls: type[BaseException],
    state: dict[str, Any],
    attributes: dict[str, Any],
    members: tuple[BaseException, ...],
) -> BaseException:
    return make_exception(_hidden_subclass(cls), state, attributes, members)


def _copy_stand_in(cls: type, attributes: dict[str, Any]) -> object:
    made: object = object.__new__(_hidden_subclass(cls))
    made.__dict__.update(attributes)
    return made
