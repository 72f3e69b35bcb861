"""`Codec`: takes the instances of one class apart, for the encoder."""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from .errors import DecodeError


class Label(enum.Enum):
    """The kind of labels that the parts of an object get in the path of an error message."""

    NONE = enum.auto()  # parts of the object itself
    ITEMS = enum.auto()  # items, by index
    PAIRS = enum.auto()  # key, value, key, value …
    FIELDS = enum.auto()  # a class, maps of attributes
    NODES = enum.auto()  # a list of FIELDS


@dataclass(frozen=True, slots=True)
class Codec:
    """A description of how instances of one class are taken apart.

    Attributes:
        code: The code of the MessagePack extension.
        reduce: A function that returns the content of an object: a new list of the object's parts, or a plain
            value. Raises `NotRecordable` if the object cannot be recorded.
        label: The kind of labels of the parts.
        offset: The number of parts without labels, which come first.
        is_unordered: Whether the order of the parts has no meaning. Such parts are recorded sorted, so that
            equal values have equal bytes.
        is_raw: Whether `reduce` returns the bytes of the extension.
    """

    code: int
    reduce: Callable[[Any], object]
    label: Label = Label.NONE
    offset: int = 0
    is_unordered: bool = False
    is_raw: bool = False


class ClassFinder(Protocol):
    """A finder of classes while a value is decoded."""

    def find(self, name: str) -> type:
        """Returns the class with this recorded name, or raises `DecodeError`."""
        ...


# The two functions that a program has registered for each of its own classes. The first takes an instance
# apart, the second rebuilds it.
own_codecs: Final[dict[type, tuple[Callable[[Any], object], Callable[[Any], object]]]] = {}

# A function that rebuilds a value from the content of an extension, or from its bytes.
ContentReader = Callable[[Any, ClassFinder], object]
BytesReader = Callable[[bytes], object]


def derives_from(cls: type, base: type) -> bool:
    """Returns `issubclass(cls, base)`, without narrowing the type of `cls` for type checkers."""
    return issubclass(cls, base)


def require_subclass(cls: type, base: type | tuple[type, ...], kind: str) -> None:
    """Checks that a class still derives from `base`, as when the value was recorded. `kind` describes `base`
    in the message.

    Raises:
        DecodeError: The class is no subclass of `base`.
    """
    if not issubclass(cls, base):
        raise DecodeError(
            f"class {cls.__qualname__} of module {cls.__module__} is no {kind}, but it was one when "
            "the value was recorded"
        )
