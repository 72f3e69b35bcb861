"""Members of enumerations, and classes as values."""

import enum
from typing import Any, cast

from . import codes
from .codec import Codec, Names, expect
from .errors import DecodeError
from .references import name_of


def enum_codec(cls: type[enum.Enum]) -> Codec:
    """Members by name: a value may change, and members may move, without harm to what is recorded."""
    name = name_of(cls)
    if issubclass(cls, enum.Flag):

        def flag(value: enum.Flag) -> list[object]:
            members = list(value)
            rest = value.value
            for member in members:
                rest &= ~member.value
            return [name, rest, *(member.name for member in members)]

        return Codec(codes.FLAG, flag)

    def member(value: enum.Enum) -> list[str]:
        return [name, value.name]

    return Codec(codes.ENUM, member)


def read_enum(content: list[str], names: Names) -> enum.Enum:
    """The member of that name."""
    name, member = content
    cls = names.find(name)
    expect(cls, enum.Enum, "Enum")
    return _member(cls, member)


def read_flag(content: list[Any], names: Names) -> enum.Flag:
    """The members of those names, and bits without a name."""
    name, bits, *members = content
    cls = names.find(name)
    expect(cls, enum.Flag, "Flag")
    for member in members:
        bits |= _member(cls, member).value
    return cast(enum.Flag, cls(bits))


def _member(cls: Any, name: str) -> enum.Enum:
    try:
        found: enum.Enum = cls[name]
    except KeyError:
        raise DecodeError(
            f"{cls.__qualname__} of module {cls.__module__} has no member {name} (any more): keep the "
            "old name as an alias of the member that took its place"
        ) from None
    return found


CLASS = Codec(codes.CLASS, name_of)


def read_class(content: str, names: Names) -> type:
    """The class of that name."""
    return names.find(content)
