"""`Codec`: how the instances of one class are taken apart and put together."""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from .errors import DecodeError


class Label(enum.Enum):
    """What the parts of a content are to the one who reads a path."""

    NONE = enum.auto()  # parts of the object itself
    ITEMS = enum.auto()  # items, by index
    PAIRS = enum.auto()  # key, value, key, value …
    FIELDS = enum.auto()  # a class, maps of attributes
    NODES = enum.auto()  # a list of FIELDS


@dataclass(frozen=True, slots=True)
class Codec:
    """Takes instances of one class apart.

    Attributes:
        code: Code of the extension.
        reduce: Gives the content: a fresh list of the object's parts, or a plain value. It raises
            `Refusal` if this object cannot be recorded.
        label: What the parts are.
        offset: How many parts of the content come before the labelled ones.
        sorts: The order of the parts means nothing: they are recorded sorted, so that equal values
            give equal bytes.
        raw: `reduce` gives the bytes of the extension.
    """

    code: int
    reduce: Callable[[Any], object]
    label: Label = Label.NONE
    offset: int = 0
    sorts: bool = False
    raw: bool = False


class Names(Protocol):
    """Who finds classes while a value is read."""

    def find(self, name: str) -> type:
        """The class of that name, or `DecodeError`."""
        ...


# Functions that users gave for their own classes: one that takes apart, one that puts together.
own_codecs: Final[dict[type, tuple[Callable[[Any], object], Callable[[Any], object]]]] = {}

# Makes a value of the content of an extension; or of its bytes.
Read = Callable[[Any, Names], object]
RawRead = Callable[[bytes], object]


def derives(cls: type, base: type) -> bool:
    """`issubclass`, which makes no claim to type checkers."""
    return issubclass(cls, base)


def expect(cls: type, base: type | tuple[type, ...], what: str) -> None:
    """Refuses to treat a class as something that it is not (any more).

    Raises:
        DecodeError: It is not a subclass of `base`.
    """
    if not issubclass(cls, base):
        raise DecodeError(
            f"class {cls.__qualname__} of module {cls.__module__} is no {what}, but it was one when "
            "the value was recorded"
        )
