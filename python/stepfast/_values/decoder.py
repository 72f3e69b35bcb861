"""`decode`: values from their bytes."""

from typing import Any, Final

from ormsgpack import unpackb

from .errors import DecodeError
from .references import find
from .registry import RAW_READERS, READERS
from .wire import ANY_KEYS


def decode(data: bytes | bytearray | memoryview, hint: object = None) -> Any:
    """The value that `encode` was given.

    Imports the modules of the classes that the value names, and no other. Bytes are trusted as far as the
    database is that they come from.

    Args:
        data: What `encode` gave, or any MessagePack value without extensions.
        hint: The type annotation of the place that the value is for. It never changes the type of a
            value; it only helps to find classes that are not where they were when the value was recorded.

    Raises:
        DecodeError: The bytes are no value, or name a class that is not found or has changed too much.
    """
    try:
        return unpackb(data, ext_hook=_plain, option=ANY_KEYS)
    except ValueError:
        return Reader(hint).value(data)


class Reader:
    """Reads one value, and keeps why it could not: the library does not pass on what a hook raises."""

    def __init__(self, hint: object = None) -> None:
        self.hint = hint
        self.failure: Exception | None = None

    def value(self, data: bytes | bytearray | memoryview) -> Any:
        """The value; `DecodeError` if it cannot be read."""
        try:
            return unpackb(data, ext_hook=self.extension, option=ANY_KEYS)
        except ValueError as error:
            failure = self.failure
            if isinstance(failure, DecodeError):
                raise failure from failure.__cause__
            if failure is not None:
                raise DecodeError(
                    f"a recorded value cannot be made again: {type(failure).__name__}: {failure}"
                ) from failure
            raise DecodeError(f"the bytes are no recorded value: {error}") from error

    def find(self, name: str) -> type:
        """The class of that name."""
        return find(name, self.hint)

    def extension(self, code: int, data: bytes) -> object:
        """What stands for an extension."""
        try:
            if (read_raw := RAW_READERS.get(code)) is not None:
                return read_raw(data)
            if (read := READERS.get(code)) is not None:
                return read(unpackb(data, ext_hook=self.extension, option=ANY_KEYS), self)
            raise DecodeError(f"extension {code} is not known to this version of Stepfast, or is not its own")
        except Exception as error:
            if self.failure is None:
                self.failure = error
            raise


class _Plain:
    """Who finds classes where there is no hint."""

    find = staticmethod(find)


_names: Final = _Plain()


def _plain(code: int, data: bytes) -> object:
    if (read := READERS.get(code)) is not None:
        return read(unpackb(data, ext_hook=_plain, option=ANY_KEYS), _names)
    if (read_raw := RAW_READERS.get(code)) is not None:
        return read_raw(data)
    raise DecodeError
