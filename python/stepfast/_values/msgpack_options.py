"""The options of the MessagePack library, and checks that the library does not make."""

import gc
from typing import Any, Final

import ormsgpack

# The options for writing. OPT_NON_STR_KEYS is not among them: it writes keys that are enums, dates or UUIDs
# as text, and a key of a subclass as an instance of the base class.
PACK_OPTIONS: Final = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
# The option for reading, and for writing maps whose keys were checked.
ANY_KEYS: Final = ormsgpack.OPT_NON_STR_KEYS

# The maximum nesting of extensions. The library limits the nesting of lists and dicts to 255; its count
# starts again in each extension.
MAX_DEPTH: Final = 100

# MessagePack's codes of byte strings. They are ints, because a search with `in` is many times slower for
# bytes.
BIN8: Final = 0xC4
_BIN16: Final = 0xC5
_BIN32: Final = 0xC6
MIN_BIN16_LENGTH: Final = 256  # fewer bytes cannot contain a byte string with another code than BIN8

_BUFFER_TYPES: Final = frozenset({bytearray, memoryview})
_CONTAINER_TYPES: Final = frozenset({list, dict})


def contains_buffer(content: object, data: bytes) -> bool:
    """Returns whether the library wrote a bytearray or a memoryview as bytes. The library does so without an
    error.

    Callers need not check data that is shorter than `MIN_BIN16_LENGTH` and does not contain `BIN8`.

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
        # `get_referents` is many times faster than a walk through the containers
        parts = gc.get_referents(*level)
        kinds = set(map(type, parts))
        if not kinds.isdisjoint(_BUFFER_TYPES):
            return True
        if kinds.isdisjoint(_CONTAINER_TYPES):
            return False
        level = [part for part in parts if type(part) in _CONTAINER_TYPES]
    return False


def sorted_array(parts: list[bytes]) -> bytes:
    """Returns the encoded array of parts that are encoded already, sorted by their bytes."""
    count = len(parts)
    if count < 16:
        header = bytes((0x90 | count,))
    elif count < 1 << 16:
        header = b"\xdc" + count.to_bytes(2, "big")
    else:
        header = b"\xdd" + count.to_bytes(4, "big")
    return header + b"".join(sorted(parts))
