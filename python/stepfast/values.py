"""The encoding of recorded values: `encode`, `decode`, and the registration of further types.

A decoded value equals the encoded one and has the same types at every level. Any other value is rejected when
it is encoded. None, bool, int, float, str, bytes, list and dict are plain MessagePack. Every other type is an
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
