"""`encode`: common values in one call of the library, all else by codec."""

from collections.abc import Callable
from typing import Any, Final

from ormsgpack import Ext, packb

from .codec import Codec
from .registry import codec_of, codecs
from .walk import encode_carefully
from .wire import MAX_DEPTH, OPTION, hides_bytes, sorted_array


def encode(value: object, *, path: str = "value") -> bytes:
    """The MessagePack bytes of a value, from which `decode` makes an equal one of the same types.

    Args:
        value: What to record. It is not changed, and must not change meanwhile.
        path: What errors call it.

    Raises:
        EncodeError: It would not come back as it is. Nothing is recorded.
    """
    try:
        data = packb(value, _defaults[0], OPTION)
    except TypeError:
        return encode_carefully(value, path)
    if hides_bytes(value, data):
        return encode_carefully(value, path)
    return data


class _NotSimple(TypeError):
    """The library cannot write this alone; the careful way finds out why."""


def _pack(codec: Codec, content: Any, depth: int) -> bytes:
    if codec.raw:
        return content
    default = _defaults[depth]
    if codec.sorts:
        return sorted_array([packb(part, default, OPTION) for part in content])
    data = packb(content, default, OPTION)
    if hides_bytes(content, data):
        raise _NotSimple
    return data


def _default_at(depth: int) -> Callable[[Any], Ext]:
    def default(value: Any) -> Ext:
        cls = type(value)
        codec = codecs.get(cls) or codec_of(cls)
        if depth == MAX_DEPTH:
            raise _NotSimple
        return Ext(codec.code, _pack(codec, codec.reduce(value), depth + 1))

    return default


# One function for each depth, so that the depth needs no state.
_defaults: Final = [_default_at(depth) for depth in range(MAX_DEPTH + 1)]
