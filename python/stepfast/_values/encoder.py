"""`encode`: encodes common values in one call of the library, and all other values by their codecs."""

from collections.abc import Callable
from typing import Any, Final

from ormsgpack import Ext, packb

from .careful_encoder import encode_carefully
from .msgpack_options import BIN8, MAX_DEPTH, MIN_BIN16_LENGTH, PACK_OPTIONS, contains_buffer, sorted_array
from .registry import codec_by_class, codec_of


def encode(value: object, *, path: str = "value") -> bytes:
    """Returns the MessagePack bytes of a value, from which `decode` makes an equal value of the same types.

    Args:
        value: The value to record. It is not changed, and must not change during the call.
        path: The name of the value in error messages; `value` by default.

    Raises:
        EncodeError: `decode` could not return an equal value. Nothing is recorded.
    """
    cls = type(value)
    try:
        if cls is str or cls is int or value is None:
            return packb(value)
        data = packb(value, _default, PACK_OPTIONS)
    except TypeError:
        return encode_carefully(value, path)
    if (BIN8 in data or len(data) >= MIN_BIN16_LENGTH) and contains_buffer(value, data):
        return encode_carefully(value, path)
    return data


class _NotSimpleError(TypeError):
    """The library cannot write the value by itself. Then `encode_carefully` encodes the value or finds the
    reason."""


def _default_at_depth(inner_default: Callable[[Any], Ext]) -> Callable[[Any], Ext]:
    def default(value: object) -> Ext:
        cls = type(value)
        codec = codec_by_class.get(cls) or codec_of(cls)
        content: Any = codec.reduce(value)
        if codec.is_unordered:
            parts = [packb(part, inner_default, PACK_OPTIONS) for part in content]
            return Ext(codec.code, sorted_array(parts))
        if codec.is_raw:
            return Ext(codec.code, content)
        data = packb(content, inner_default, PACK_OPTIONS)
        if (BIN8 in data or len(data) >= MIN_BIN16_LENGTH) and contains_buffer(content, data):
            raise _NotSimpleError
        return Ext(codec.code, data)

    return default


def _too_deep(value: Any) -> Ext:
    raise _NotSimpleError


# The hook for values that the library does not know. There is one function for each depth, so that the depth
# needs no state.
def _default_for_depth(depth: int) -> Callable[[Any], Ext]:
    default: Callable[[Any], Ext] = _too_deep
    for _ in range(depth):
        default = _default_at_depth(default)
    return default


_default: Final = _default_for_depth(MAX_DEPTH)
