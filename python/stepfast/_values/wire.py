"""What is asked of the MessagePack library, and what it cannot be asked."""

import gc
from typing import Any, Final

import ormsgpack

# No OPT_NON_STR_KEYS: it writes enums, dates and UUIDs as text, and subclasses as their base.
OPTION: Final = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
# For maps whose keys were looked at, and for reading.
ANY_KEYS: Final = ormsgpack.OPT_NON_STR_KEYS

# How deep lists and dicts may be nested in each other is the library's limit (255); each extension starts
# anew.
MAX_DEPTH: Final = 100

# Codes of byte strings. They are looked for as ints, as `in` is many times slower with bytes.
BIN8: Final = 0xC4
_BIN16: Final = 0xC5
_BIN32: Final = 0xC6
SHORT: Final = 256  # fewer bytes have no room for a byte string with another code than BIN8

_BUFFERS: Final = frozenset({bytearray, memoryview})
_CONTAINERS: Final = frozenset({list, dict})


def hides_bytes(content: object, data: bytes) -> bool:
    """Whether the library wrote a bytearray or a memoryview as bytes, which it does without asking.

    Short bytes without `BIN8` among them need not be asked about.

    Args:
        content: What was written.
        data: The bytes that were written.
    """
    if BIN8 not in data and _BIN16 not in data and _BIN32 not in data:
        return False
    if type(content) in _BUFFERS:
        return True
    level: list[Any] = [content] if type(content) in _CONTAINERS else []
    while level:
        # the garbage collector's view of containers is many times faster than a walk
        parts = gc.get_referents(*level)
        kinds = set(map(type, parts))
        if not kinds.isdisjoint(_BUFFERS):
            return True
        if kinds.isdisjoint(_CONTAINERS):
            return False
        level = [part for part in parts if type(part) in _CONTAINERS]
    return False


def sorted_array(parts: list[bytes]) -> bytes:
    """An array of encoded parts, in the order of their bytes."""
    count = len(parts)
    if count < 16:
        head = bytes((0x90 | count,))
    elif count < 1 << 16:
        head = b"\xdc" + count.to_bytes(2, "big")
    else:
        head = b"\xdd" + count.to_bytes(4, "big")
    return head + b"".join(sorted(parts))
