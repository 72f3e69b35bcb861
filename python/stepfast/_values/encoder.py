"""`encode`: common values in one call of the library, all else by codec."""

from collections.abc import Callable
from typing import Any, Final

from ormsgpack import Ext, packb

from .registry import codec_of, codecs
from .walk import encode_carefully
from .wire import BIN8, MAX_DEPTH, OPTION, SHORT, hides_bytes, sorted_array


def encode(value: object, *, path: str = "value") -> bytes:
    """The MessagePack bytes of a value, from which `decode` makes an equal one of the same types.

    Args:
        value: What to record. It is not changed, and must not change meanwhile.
        path: What errors call it.

    Raises:
        EncodeError: It would not come back as it is. Nothing is recorded.
    """
    cls = type(value)
    try:
        if cls is str or cls is int or value is None:
            return packb(value)
        data = packb(value, _default, OPTION)
    except TypeError:
        return encode_carefully(value, path)
    if (BIN8 in data or len(data) >= SHORT) and hides_bytes(value, data):
        return encode_carefully(value, path)
    return data


class _NotSimpleError(TypeError):
    """The library cannot write this alone; the careful way finds out why."""


def _default_above(following: Callable[[Any], Ext]) -> Callable[[Any], Ext]:
    def default(value: object) -> Ext:
        cls = type(value)
        codec = codecs.get(cls) or codec_of(cls)
        content: Any = codec.reduce(value)
        if codec.sorts:
            parts = [packb(part, following, OPTION) for part in content]
            return Ext(codec.code, sorted_array(parts))
        if codec.raw:
            return Ext(codec.code, content)
        data = packb(content, following, OPTION)
        if (BIN8 in data or len(data) >= SHORT) and hides_bytes(content, data):
            raise _NotSimpleError
        return Ext(codec.code, data)

    return default


def _too_deep(value: Any) -> Ext:
    raise _NotSimpleError


# One function for each depth, so that the depth needs no state.
def _default_of(depth: int) -> Callable[[Any], Ext]:
    default: Callable[[Any], Ext] = _too_deep
    for _ in range(depth):
        default = _default_above(default)
    return default


_default: Final = _default_of(MAX_DEPTH)
