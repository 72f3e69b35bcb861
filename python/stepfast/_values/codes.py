"""The codes of the MessagePack extensions. Databases contain them: no code may change or be reused.

The bytes of every extension are one MessagePack value, which the comment beside the code describes. `class`
stands for the name of a class: `module:qualname`, or the name under which the class was registered.
"""

from typing import Final

TUPLE: Final = 1  # array of items
SET: Final = 2  # array of items, sorted
FROZENSET: Final = 3  # array of items, sorted
MAP: Final = 4  # array: key, value, key, value …; a dict with keys that are not plain
INTEGER: Final = 5  # bin: two's complement, big-endian; an int beyond 64 bits
COMPLEX: Final = 6  # array: real, imaginary
DECIMAL: Final = 7  # str
FRACTION: Final = 8  # array: numerator, denominator
BYTEARRAY: Final = 9  # bin
DATETIME: Final = 10  # str (ISO 8601), or array: str without offset, fold, zone
DATE: Final = 11  # str (ISO 8601)
TIME: Final = 12  # like DATETIME
TIMEDELTA: Final = 13  # array: days, seconds, microseconds
UUID: Final = 14  # bin of 16 bytes
PATH: Final = 15  # array: name of the class in pathlib, str
IP: Final = 16  # array: name of the class in ipaddress, str
RANGE: Final = 17  # array: start, stop, step
SLICE: Final = 18  # array: start, stop, step
PATTERN: Final = 19  # array: str or bin, flags
ORDERED_DICT: Final = 20  # like MAP
DEFAULT_DICT: Final = 21  # array: factory, key, value, key, value …
COUNTER: Final = 22  # like MAP
DEQUE: Final = 23  # array: maxlen, item, item …
OBJECT: Final = 24  # array: class, map of fields[, map of the other state]
ENUM: Final = 25  # array: class, name of the member
FLAG: Final = 26  # array: class, bits without a name, name, name …
CLASS: Final = 27  # str: class
REGISTERED: Final = 28  # array: class, value that the codec of the class made
EXCEPTION: Final = 29  # array of nodes, see stepfast._values.exceptions.nodes
ARRAY: Final = 30  # array: bin32, dtype, shape, order
NUMPY_SCALAR: Final = 31  # array: dtype, bin or str
URL: Final = 32  # array: class, str
