"""The encoding of recorded values: `encode`, `decode`, and the registration of further types.

A decoded value equals the encoded one and has the same type at every level; any other value is rejected when
it is encoded. None, bool, int, float, str, bytes, list and dict are plain MessagePack. Every other type is an
extension of it, whose codes are in `stepfast._values.codes` and in docs/guide/values.md.
"""

from .arguments import encode_arguments
from .decoder import decode
from .encoder import encode
from .errors import DecodeError, EncodeError
from .exceptions.failures import decode_exception, encode_exception
from .exceptions.remote_error import RemoteError
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
