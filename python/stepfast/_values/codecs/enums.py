"""Codecs of enum members, and of classes as values."""

import enum
from typing import Any, cast

from .. import codes
from ..codec import ClassFinder, Codec, require_subclass
from ..errors import DecodeError
from ..references import name_of


def enum_codec(cls: type[enum.Enum]) -> Codec:
    """Returns the codec of an enum class. It records members by name.

    The values and the order of the members may change without harm to recorded values.
    """
    name = name_of(cls)
    if issubclass(cls, enum.Flag):

        def reduce_flag(value: enum.Flag) -> list[object]:
            members = list(value)
            rest = value.value
            for member in members:
                rest &= ~member.value
            return [name, rest, *(member.name for member in members)]

        return Codec(codes.FLAG, reduce_flag)

    def reduce_member(value: enum.Enum) -> list[str]:
        return [name, value.name]

    return Codec(codes.ENUM, reduce_member)


def read_enum(content: list[str], finder: ClassFinder) -> enum.Enum:
    """Returns the enum member with the recorded name."""
    name, member = content
    cls = finder.find(name)
    require_subclass(cls, enum.Enum, "Enum")
    return _find_member(cls, member)


def read_flag(content: list[Any], finder: ClassFinder) -> enum.Flag:
    """Returns the flag that combines the recorded members and the recorded bits without a name."""
    name, bits, *members = content
    cls = finder.find(name)
    require_subclass(cls, enum.Flag, "Flag")
    for member in members:
        bits |= _find_member(cls, member).value
    return cast(enum.Flag, cls(bits))


def _find_member(cls: Any, name: str) -> enum.Enum:
    try:
        found: enum.Enum = cls[name]
    except KeyError:
        raise DecodeError(
            f"{cls.__qualname__} of module {cls.__module__} has no member {name}: if the member was "
            "renamed, add the old name as an alias of the new one"
        ) from None
    return found


CLASS_CODEC = Codec(codes.CLASS, name_of)


def read_class(content: str, finder: ClassFinder) -> type:
    """Returns the class with the recorded name."""
    return finder.find(content)
