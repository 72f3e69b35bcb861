"""The types that annotations stand for."""

from __future__ import annotations

import numbers
import types
import typing
from collections.abc import Iterator
from typing import Any, Final, Literal, cast

_UNIONS: Final = (typing.Union, types.UnionType)
#: The classes whose instances are accepted as numbers of a class: an int as a float, and numbers of other
#: libraries.
_NUMBERS: Final[dict[type, type]] = {int: numbers.Integral, float: numbers.Real, complex: numbers.Complex}


def evaluate(annotation: Any, namespace: dict[str, Any]) -> Any:
    """Returns the type of an annotation; `Any` if the annotation cannot be evaluated.

    Args:
        annotation: The annotation, or its text.
        namespace: The global names of the annotated code.
    """
    holder = types.SimpleNamespace(__annotations__={"annotation": annotation})
    try:
        return typing.get_type_hints(holder, namespace)["annotation"]
    except Exception:
        # names that only type checkers import, or local ones
        return Any


def members_of(given: Any) -> Iterator[Any]:
    """Returns the types of which a type is the union: classes, their generic aliases, and `Any`."""
    if isinstance(given, typing.NewType):
        yield from members_of(given.__supertype__)
        return
    origin = typing.get_origin(given)
    if origin in _UNIONS:
        for member in typing.get_args(given):
            yield from members_of(member)
    elif origin is Literal:
        yield from {type(value) for value in typing.get_args(given)}
    elif typing.is_typeddict(given) or typing.is_typeddict(origin):
        yield dict
    elif given is None:
        yield type(None)
    elif isinstance(given, type) or isinstance(origin, type):
        yield given
    else:
        # a type variable, a forward reference, or a form that no class stands for
        yield Any


def class_of(member: Any) -> type:
    """Returns the class of a type that is no union."""
    return cast("type", typing.get_origin(member) or member)


def accepts(given: Any, value: object) -> bool:
    """Returns whether a value has a type. The items of containers are not compared, and a type for which no
    class stands accepts every value.

    Args:
        given: The type.
        value: The value.
    """
    if isinstance(given, typing.NewType):
        return accepts(given.__supertype__, value)
    origin = typing.get_origin(given)
    if origin in _UNIONS:
        return any(accepts(member, value) for member in typing.get_args(given))
    if origin is Literal:
        return any(type(each) is type(value) and each == value for each in typing.get_args(given))
    return all(member is Any or _is_instance(value, class_of(member)) for member in members_of(given))


def _is_instance(value: object, cls: type) -> bool:
    try:
        return getattr(cls, "_is_protocol", False) or isinstance(value, _NUMBERS.get(cls, cls))
    except TypeError:
        # the metaclass does not support the question
        return True


__all__ = ["accepts", "class_of", "evaluate", "members_of"]
