"""The options of the MessagePack library, and checks that the library does not make."""

import gc
from typing import Any, Final

import ormsgpack

# Without OPT_NON_STR_KEYS, which writes enums, dates and UUIDs as text, and subclasses as their base.
PACK_OPTIONS: Final = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
# For maps whose keys were checked, and for reading.
ANY_KEYS: Final = ormsgpack.OPT_NON_STR_KEYS

# The maximum nesting of extensions. The nesting of lists and dicts is limited by the library (255), and each
# extension starts a new count.
MAX_DEPTH: Final = 100

# Codes of byte strings. They are searched as ints, because `in` is many times slower with bytes.
BIN8: Final = 0xC4
_BIN16: Final = 0xC5
_BIN32: Final = 0xC6
MIN_BIN16_LENGTH: Final = 256  # fewer bytes cannot contain a byte string with another code than BIN8

_BUFFER_TYPES: Final = frozenset({bytearray, memoryview})
_CONTAINER_TYPES: Final = frozenset({list, dict})


def contains_buffer(content: object, data: bytes) -> bool:
    """Returns whether the library wrote a bytearray or a memoryview as bytes, which it does without notice.

    Callers need not check fewer than `MIN_BIN16_LENGTH` bytes without `BIN8` among them.

    Args:
        content: The value that was written.
        data: The bytes that were written.
    """
    if BIN8 not in data and _BIN16 not in data and _BIN32 not in data:
        return False
    if type(content) in _BUFFER_TYPES:
        return True
    level: list[Any] = [content] if type(content) in _CONTAINER_TYPES else []
    while level:
        # the garbage collector's view of containers is many times faster than a walk
        parts = gc.get_referents(*level)
        kinds = set(map(type, parts))
        if not kinds.isdisjoint(_BUFFER_TYPES):
            return True
        if kinds.isdisjoint(_CONTAINER_TYPES):
            return False
        level = [part for part in parts if type(part) in _CONTAINER_TYPES]
    return False


def sorted_array(parts: list[bytes]) -> bytes:
    """Returns an array of encoded parts, sorted by their bytes."""
    count = len(parts)
    if count < 16:
        header = bytes((0x90 | count,))
    elif count < 1 << 16:
        header = b"\xdc" + count.to_bytes(2, "big")
    else:
        header = b"\xdd" + count.to_bytes(4, "big")
    return header + b"".join(sorted(parts))
