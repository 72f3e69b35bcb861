"""Arguments of workflows, as they are recorded: those by position, then those by name."""

from typing import Any

from .encoder import encode
from .errors import EncodeError


def encode_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """The MessagePack bytes of the arguments of a call: of a list of both.

    Args:
        args: Arguments by position.
        kwargs: Arguments by name.

    Raises:
        EncodeError: One of them would not come back as it is; it says which.
    """
    try:
        return encode([list(args), kwargs])
    except EncodeError:
        for position, argument in enumerate(args, 1):
            encode(argument, path=f"argument {position}")
        for name, argument in kwargs.items():
            encode(argument, path=f"argument {name!r}")
        raise
