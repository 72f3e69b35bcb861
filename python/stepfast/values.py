"""Values as they are recorded: `encode` and `decode`, and which values they accept.

A value comes back as it was, of the same type at every level, or is rejected when it is recorded.
None, bool, int, float, str, bytes, list and dict are plain MessagePack. Every other type is an
extension of it; docs/guide/values.md lists the codes.
"""

from stepfast._values import (
    DecodeError,
    EncodeError,
    RemoteError,
    decode,
    decode_exception,
    encode,
    encode_arguments,
    encode_exception,
    register,
)

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

for _name in __all__:
    # classes are recorded under the names by which programs import them
    globals()[_name].__module__ = __name__
