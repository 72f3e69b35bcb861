"""Codecs of numpy's arrays and scalars. numpy is never imported before a value needs it."""

import importlib
import sys
from typing import Any, Final

from ormsgpack import packb, unpackb

from .. import codes
from ..codec import BytesReader, ClassFinder, Codec, ContentReader
from ..errors import NotRecordable, type_name

_DTYPE_ADVICE: Final = "use plain numbers or text, a supported dtype, or tolist()"


def codec_of(cls: type) -> Codec | None:
    """Returns the codec of a class of numpy; None for any other class.

    Raises:
        NotRecordable: The class belongs to numpy, and is not supported.
    """
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "generic"):
        return None
    if cls is numpy.ndarray:
        return Codec(codes.ARRAY, _reduce_array, is_raw=True)
    if issubclass(cls, numpy.dtype):
        raise NotRecordable("dtypes are not recorded", "record its name: str(dtype)")
    if issubclass(cls, numpy.ndarray):
        raise NotRecordable(
            "it would come back as a plain array",
            "use numpy.asarray, and record what is lost beside it",
        )
    if not issubclass(cls, numpy.generic):
        return None
    if cls.__module__ != "numpy" or issubclass(cls, numpy.void):
        raise NotRecordable(f"scalars of {type_name(cls)} are not supported", "use item()")
    return Codec(codes.NUMPY_SCALAR, _reduce_text if issubclass(cls, numpy.character) else _reduce_scalar)


# The MessagePack header of an array of four items whose first item is a byte string with a length of four
# bytes. With this header the data start at a fixed offset, so a view can read them.
_HEADER: Final = b"\x94\xc6"
_DATA_OFFSET: Final = len(_HEADER) + 4


def _describe_dtype(dtype: Any) -> Any:
    """Returns the description of a dtype in numpy's own file format, as lists and text."""
    npy_format = importlib.import_module("numpy.lib.format")
    if not dtype.hasobject and dtype.metadata is None:
        described = npy_format.dtype_to_descr(dtype)
        restored = npy_format.descr_to_dtype(described)
        if restored == dtype and _type_chars(restored) == _type_chars(dtype):
            return _to_lists(described)
    raise NotRecordable(f"its dtype is {dtype}", _DTYPE_ADVICE)


def _type_chars(dtype: Any) -> list[Any]:
    """Returns the type characters of a dtype. Equal dtypes may differ in them, such as `long` and `longlong`
    of the same size."""
    names: tuple[str, ...] = dtype.names or ()
    return [_type_chars(dtype[name]) for name in names] or [dtype.base.char]


def _to_lists(described: Any) -> Any:
    return described if isinstance(described, (str, int)) else [*map(_to_lists, described)]


def _read_dtype(described: Any) -> Any:
    npy_format = importlib.import_module("numpy.lib.format")
    return npy_format.descr_to_dtype(_restore_tuples(described))


def _restore_tuples(described: Any) -> Any:
    if isinstance(described, str):
        return described
    return [
        (name if type(name) is str else tuple(name), _restore_tuples(kind), *map(tuple, shape))
        for name, kind, *shape in described
    ]


def _reduce_array(value: Any) -> bytes:
    numpy: Any = sys.modules["numpy"]
    described = _describe_dtype(value.dtype)
    if value.nbytes >= 1 << 32:
        raise NotRecordable("it has more than 4 GiB", "record where it is stored instead")
    order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    rest = packb([described, list(value.shape), order])
    flat = numpy.ascontiguousarray(value.T if order == "F" else value).reshape(-1)
    # viewed as bytes, because arrays of times have no buffer interface; a view makes no copy
    data = flat.view(numpy.uint8).data if value.nbytes else b""
    return b"".join((_HEADER, value.nbytes.to_bytes(4, "big"), data, rest[1:]))


def _read_array(data: bytes) -> Any:
    numpy: Any = importlib.import_module("numpy")
    end = _DATA_OFFSET + int.from_bytes(data[len(_HEADER) : _DATA_OFFSET], "big")
    described, shape, order = unpackb(b"\x93" + data[end:])
    dtype = _read_dtype(described)
    made = numpy.empty(shape, dtype, order)
    if made.nbytes:
        flat = made.T if order == "F" else made
        flat.reshape(-1).view(numpy.uint8)[:] = numpy.frombuffer(
            data, numpy.uint8, end - _DATA_OFFSET, _DATA_OFFSET
        )
    return made


def _reduce_text(value: Any) -> list[object]:
    kind = type(value).__name__
    return [kind, str(value) if kind == "str_" else bytes(value)]


def _reduce_scalar(value: Any) -> list[object]:
    return [_describe_dtype(value.dtype), value.tobytes()]


def _read_scalar(content: list[Any], _: ClassFinder) -> Any:
    numpy: Any = importlib.import_module("numpy")
    described, data = content
    if described in {"str_", "bytes_"}:
        return getattr(numpy, described)(data)
    return numpy.frombuffer(data, _read_dtype(described))[0]


READERS: Final[dict[int, ContentReader]] = {codes.NUMPY_SCALAR: _read_scalar}
RAW_READERS: Final[dict[int, BytesReader]] = {codes.ARRAY: _read_array}
