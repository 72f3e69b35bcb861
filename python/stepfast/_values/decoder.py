"""`decode`: rebuilds values from their bytes."""

from typing import Any, Final

from ormsgpack import unpackb

from .errors import DecodeError
from .msgpack_options import ANY_KEYS
from .references import find
from .registry import RAW_READERS, READERS


def decode(data: bytes | bytearray | memoryview, hint: object = None) -> Any:
    """Returns the value that was given to `encode`.

    Imports the modules of the classes that the value names, and no other modules. So decode only bytes from a
    source that may import modules, such as the program's own database.

    Args:
        data: The bytes that `encode` returned, or any MessagePack value without extensions.
        hint: A type annotation for the value; None by default. It never changes the type of a value, and only
            helps to find classes that have moved since the value was recorded.

    Raises:
        DecodeError: The bytes are no encoded value, or name a class that is not found or has changed too
            much.
    """
    try:
        return unpackb(data, ext_hook=_read_extension, option=ANY_KEYS)
    except ValueError:
        return Reader(hint).read(data)


class Reader:
    """A reader of one value. It keeps the exception of a failed read, because the library does not pass on
    exceptions of hooks."""

    def __init__(self, hint: object = None) -> None:
        self.hint = hint
        self.failure: Exception | None = None

    def read(self, data: bytes | bytearray | memoryview) -> Any:
        """Returns the value. Raises `DecodeError` if the value cannot be read."""
        try:
            return unpackb(data, ext_hook=self.read_extension, option=ANY_KEYS)
        except ValueError as error:
            failure = self.failure
            if isinstance(failure, DecodeError):
                raise failure from failure.__cause__
            if failure is not None:
                raise DecodeError(
                    f"a recorded value cannot be rebuilt: {type(failure).__name__}: {failure}"
                ) from failure
            raise DecodeError(f"the bytes are no recorded value: {error}") from error

    def find(self, name: str) -> type:
        """Returns the class with this recorded name."""
        return find(name, self.hint)

    def read_extension(self, code: int, data: bytes) -> object:
        """Returns the value of an extension, given its code and its bytes."""
        try:
            if (read_raw := RAW_READERS.get(code)) is not None:
                return read_raw(data)
            if (read := READERS.get(code)) is not None:
                return read(unpackb(data, ext_hook=self.read_extension, option=ANY_KEYS), self)
            raise DecodeError(
                f"extension {code} is not known to this version of Stepfast: a newer version, or another "
                "program, has written it"
            )
        except Exception as error:
            if self.failure is None:
                self.failure = error
            raise


class _PlainFinder:
    """A finder of classes by their recorded names alone, without a type annotation."""

    find = staticmethod(find)


_plain_finder: Final = _PlainFinder()


def _read_extension(code: int, data: bytes) -> object:
    if (read := READERS.get(code)) is not None:
        return read(unpackb(data, ext_hook=_read_extension, option=ANY_KEYS), _plain_finder)
    if (read_raw := RAW_READERS.get(code)) is not None:
        return read_raw(data)
    raise DecodeError
