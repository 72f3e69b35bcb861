"""Codecs of single values of the standard library."""

import decimal
import fractions
import ipaddress
import pathlib
import re
import uuid
from typing import Any, Final

from .. import codes
from ..codec import ClassFinder, Codec, ContentReader
from ..errors import DecodeError, NotRecordable


def _reduce_integer(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def _read_integer(content: bytes, _: ClassFinder) -> int:
    return int.from_bytes(content, "big", signed=True)


def _reduce_complex(value: complex) -> list[float]:
    return [value.real, value.imag]


def _read_complex(content: list[float], _: ClassFinder) -> complex:
    return complex(*content)


def _read_decimal(content: str, _: ClassFinder) -> decimal.Decimal:
    return decimal.Decimal(content)


def _reduce_fraction(value: fractions.Fraction) -> list[int]:
    return [value.numerator, value.denominator]


def _read_fraction(content: list[int], _: ClassFinder) -> fractions.Fraction:
    return fractions.Fraction(*content)


def _read_bytearray(content: bytes, _: ClassFinder) -> bytearray:
    return bytearray(content)


def _reduce_uuid(value: uuid.UUID) -> bytes:
    return value.bytes


def _read_uuid(content: bytes, _: ClassFinder) -> uuid.UUID:
    return uuid.UUID(int=int.from_bytes(content))


PATH_CLASSES: Final[dict[str, type[pathlib.PurePath]]] = {
    cls.__name__: cls
    for cls in (
        pathlib.PurePosixPath,
        pathlib.PureWindowsPath,
        pathlib.PosixPath,
        pathlib.WindowsPath,
    )
}


def _reduce_path(value: pathlib.PurePath) -> list[str]:
    text = str(value)
    # some paths, for example malformed Windows paths such as //://, do not equal the path made of their text
    if isinstance(value, pathlib.PureWindowsPath) and type(value)(text) != value:
        raise NotRecordable("its text makes another path", "record its parts: path.parts")
    return [type(value).__name__, text]


def _read_path(content: list[str], _: ClassFinder) -> pathlib.PurePath:
    kind, text = content
    try:
        return PATH_CLASSES[kind](text)
    except NotImplementedError as error:
        raise DecodeError(
            f"the path {text!r} was recorded as {kind}, which this system does not support; record "
            "PurePosixPath or PureWindowsPath where workers run on both"
        ) from error


IP_CLASSES: Final[dict[str, Any]] = {
    cls.__name__: cls
    for cls in (
        ipaddress.IPv4Address,
        ipaddress.IPv6Address,
        ipaddress.IPv4Network,
        ipaddress.IPv6Network,
        ipaddress.IPv4Interface,
        ipaddress.IPv6Interface,
    )
}


def _reduce_ip(value: object) -> list[str]:
    return [type(value).__name__, str(value)]


def _read_ip(content: list[str], _: ClassFinder) -> object:
    kind, text = content
    return IP_CLASSES[kind](text)


def _reduce_range(value: range | slice) -> list[Any]:
    return [value.start, value.stop, value.step]


def _read_range(content: list[int], _: ClassFinder) -> range:
    return range(*content)


def _read_slice(content: list[Any], _: ClassFinder) -> slice:
    return slice(*content)


def _reduce_pattern(value: re.Pattern[Any]) -> list[object]:
    if value.flags & re.LOCALE:
        raise NotRecordable("the pattern depends on the locale of the process")
    return [value.pattern, value.flags & ~re.DEBUG]


def _read_pattern(content: list[Any], _: ClassFinder) -> re.Pattern[Any]:
    return re.compile(content[0], content[1])


CODECS: Final[dict[type, Codec]] = {
    int: Codec(codes.INTEGER, _reduce_integer),
    complex: Codec(codes.COMPLEX, _reduce_complex),
    decimal.Decimal: Codec(codes.DECIMAL, str),
    fractions.Fraction: Codec(codes.FRACTION, _reduce_fraction),
    bytearray: Codec(codes.BYTEARRAY, bytes),
    uuid.UUID: Codec(codes.UUID, _reduce_uuid),
    range: Codec(codes.RANGE, _reduce_range),
    slice: Codec(codes.SLICE, _reduce_range),
    re.Pattern: Codec(codes.PATTERN, _reduce_pattern),
    **{cls: Codec(codes.PATH, _reduce_path) for cls in PATH_CLASSES.values()},
    **{cls: Codec(codes.IP, _reduce_ip) for cls in IP_CLASSES.values()},
}

READERS: Final[dict[int, ContentReader]] = {
    codes.INTEGER: _read_integer,
    codes.COMPLEX: _read_complex,
    codes.DECIMAL: _read_decimal,
    codes.FRACTION: _read_fraction,
    codes.BYTEARRAY: _read_bytearray,
    codes.UUID: _read_uuid,
    codes.PATH: _read_path,
    codes.IP: _read_ip,
    codes.RANGE: _read_range,
    codes.SLICE: _read_slice,
    codes.PATTERN: _read_pattern,
}
