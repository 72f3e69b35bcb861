"""Arrays and scalars of numpy, which is never imported before a value needs it."""

import importlib
import sys
from typing import Any, Final

from ormsgpack import packb, unpackb

from . import codes
from .codec import Codec, Names, RawRead, Read
from .errors import Refusal, type_name

_NATIVE: Final = "use plain numbers or text, a supported dtype, or tolist()"


def codec_of(cls: type) -> Codec | None:
    """The codec of a class of numpy; None if it is none.

    Raises:
        Refusal: It is one that is not supported.
    """
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "generic"):
        return None
    if cls is numpy.ndarray:
        return Codec(codes.ARRAY, _array, raw=True)
    if issubclass(cls, numpy.dtype):
        raise Refusal("dtypes are not recorded", "record its name: str(dtype)")
    if issubclass(cls, numpy.ndarray):
        raise Refusal(
            "it would come back as a plain array",
            "use numpy.asarray, and record what is lost beside it",
        )
    if not issubclass(cls, numpy.generic):
        return None
    if cls.__module__ != "numpy" or issubclass(cls, numpy.void):
        raise Refusal(f"scalars of {type_name(cls)} are not supported", "use item()")
    return Codec(codes.NUMPY_SCALAR, _text if issubclass(cls, numpy.character) else _scalar)


# Array of four, whose first is a byte string with a length of four bytes: the data stand where a view of
# them can be had, whatever follows.
_HEAD: Final = b"\x94\xc6"
_FIRST: Final = len(_HEAD) + 4


def _described(dtype: Any) -> Any:
    """A dtype in the words of numpy's own file format, as lists and text."""
    layout = importlib.import_module("numpy.lib.format")
    if not dtype.hasobject and dtype.metadata is None:
        described = layout.dtype_to_descr(dtype)
        again = layout.descr_to_dtype(described)
        if again == dtype and _chars(again) == _chars(dtype):
            return _listed(described)
    raise Refusal(f"its dtype is {dtype}", _NATIVE)


def _chars(dtype: Any) -> list[Any]:
    """What two dtypes that are equal may differ in: `long` and `longlong` of the same size."""
    names: tuple[str, ...] = dtype.names or ()
    return [_chars(dtype[name]) for name in names] or [dtype.base.char]


def _listed(described: Any) -> Any:
    return described if isinstance(described, (str, int)) else [*map(_listed, described)]


def _dtype(described: Any) -> Any:
    layout = importlib.import_module("numpy.lib.format")
    return layout.descr_to_dtype(_fields(described))


def _fields(described: Any) -> Any:
    if isinstance(described, str):
        return described
    return [
        (name if type(name) is str else tuple(name), _fields(kind), *map(tuple, shape))
        for name, kind, *shape in described
    ]


def _array(value: Any) -> bytes:
    numpy: Any = sys.modules["numpy"]
    described = _described(value.dtype)
    if value.nbytes >= 1 << 32:
        raise Refusal("it has more than 4 GiB", "record where it is stored instead")
    order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    rest = packb([described, list(value.shape), order])
    flat = numpy.ascontiguousarray(value.T if order == "F" else value).reshape(-1)
    # as bytes, because times have no buffer; the view costs no copy
    data = flat.view(numpy.uint8).data if value.nbytes else b""
    return b"".join((_HEAD, value.nbytes.to_bytes(4, "big"), data, rest[1:]))


def _read_array(data: bytes) -> Any:
    numpy: Any = importlib.import_module("numpy")
    end = _FIRST + int.from_bytes(data[len(_HEAD) : _FIRST], "big")
    described, shape, order = unpackb(b"\x93" + data[end:])
    dtype = _dtype(described)
    made = numpy.empty(shape, dtype, order)
    if made.nbytes:
        flat = made.T if order == "F" else made
        flat.reshape(-1).view(numpy.uint8)[:] = numpy.frombuffer(data, numpy.uint8, end - _FIRST, _FIRST)
    return made


def _text(value: Any) -> list[object]:
    kind = type(value).__name__
    return [kind, str(value) if kind == "str_" else bytes(value)]


def _scalar(value: Any) -> list[object]:
    return [_described(value.dtype), value.tobytes()]


def _read_scalar(content: list[Any], _: Names) -> Any:
    numpy: Any = importlib.import_module("numpy")
    described, data = content
    if described in {"str_", "bytes_"}:
        return getattr(numpy, described)(data)
    return numpy.frombuffer(data, _dtype(described))[0]


READERS: Final[dict[int, Read]] = {codes.NUMPY_SCALAR: _read_scalar}
RAW_READERS: Final[dict[int, RawRead]] = {codes.ARRAY: _read_array}
