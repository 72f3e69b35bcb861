"""Single values of the standard library."""

import decimal
import fractions
import ipaddress
import pathlib
import re
import uuid
from typing import Any, Final

from . import codes
from .codec import Codec, Names, Read
from .errors import DecodeError, Refusal


def _integer(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def _read_integer(content: bytes, _: Names) -> int:
    return int.from_bytes(content, "big", signed=True)


def _complex(value: complex) -> list[float]:
    return [value.real, value.imag]


def _read_complex(content: list[float], _: Names) -> complex:
    return complex(*content)


def _read_decimal(content: str, _: Names) -> decimal.Decimal:
    return decimal.Decimal(content)


def _fraction(value: fractions.Fraction) -> list[int]:
    return [value.numerator, value.denominator]


def _read_fraction(content: list[int], _: Names) -> fractions.Fraction:
    return fractions.Fraction(*content)


def _read_bytearray(content: bytes, _: Names) -> bytearray:
    return bytearray(content)


def _uuid(value: uuid.UUID) -> bytes:
    return value.bytes


def _read_uuid(content: bytes, _: Names) -> uuid.UUID:
    return uuid.UUID(int=int.from_bytes(content))


PATHS: Final[dict[str, type[pathlib.PurePath]]] = {
    cls.__name__: cls
    for cls in (
        pathlib.PurePosixPath,
        pathlib.PureWindowsPath,
        pathlib.PosixPath,
        pathlib.WindowsPath,
    )
}


def _path(value: pathlib.PurePath) -> list[str]:
    text = str(value)
    # malformed Windows paths, such as //://
    if isinstance(value, pathlib.PureWindowsPath) and type(value)(text) != value:
        raise Refusal("another path is made of its text", "record its parts: path.parts")
    return [type(value).__name__, text]


def _read_path(content: list[str], _: Names) -> pathlib.PurePath:
    kind, text = content
    try:
        return PATHS[kind](text)
    except NotImplementedError as error:
        raise DecodeError(
            f"the path {text!r} was recorded as {kind}, which this system cannot have; record "
            "PurePosixPath or PureWindowsPath where workers run on both"
        ) from error


IPS: Final[dict[str, Any]] = {
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


def _ip(value: object) -> list[str]:
    return [type(value).__name__, str(value)]


def _read_ip(content: list[str], _: Names) -> object:
    kind, text = content
    return IPS[kind](text)


def _range(value: range | slice) -> list[Any]:
    return [value.start, value.stop, value.step]


def _read_range(content: list[int], _: Names) -> range:
    return range(*content)


def _read_slice(content: list[Any], _: Names) -> slice:
    return slice(*content)


def _pattern(value: re.Pattern[Any]) -> list[object]:
    if value.flags & re.LOCALE:
        raise Refusal("the pattern depends on the locale of the process")
    return [value.pattern, value.flags & ~re.DEBUG]


def _read_pattern(content: list[Any], _: Names) -> re.Pattern[Any]:
    return re.compile(content[0], content[1])


CODECS: Final[dict[type, Codec]] = {
    int: Codec(codes.INTEGER, _integer),
    complex: Codec(codes.COMPLEX, _complex),
    decimal.Decimal: Codec(codes.DECIMAL, str),
    fractions.Fraction: Codec(codes.FRACTION, _fraction),
    bytearray: Codec(codes.BYTEARRAY, bytes),
    uuid.UUID: Codec(codes.UUID, _uuid),
    range: Codec(codes.RANGE, _range),
    slice: Codec(codes.SLICE, _range),
    re.Pattern: Codec(codes.PATTERN, _pattern),
    **{cls: Codec(codes.PATH, _path) for cls in PATHS.values()},
    **{cls: Codec(codes.IP, _ip) for cls in IPS.values()},
}

READERS: Final[dict[int, Read]] = {
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
