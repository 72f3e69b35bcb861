"""Values as they are recorded: `encode` and `decode`, and what they accept.

A value comes back as it was, of the same type at every level, or it is refused when it is recorded.
None, bool, int, float, str, bytes, list and dict are plain MessagePack; all else is an extension of it,
whose codes are in `stepfast.values.codes` and in docs/guide/values.md.
"""

from .arguments import encode_arguments
from .decoder import decode
from .encoder import encode
from .errors import DecodeError, EncodeError
from .exceptions import RemoteError
from .failures import decode_exception, encode_exception
from .registry import register

__all__ = [
    "DecodeError",
    "EncodeError",
    "RemoteError",
    "decode",
    "decode_exception",
    "encode",
    "encode_arguments",
    "encode_exception",
    "register",
]
