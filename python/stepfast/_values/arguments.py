"""Encodes the arguments of workflows."""

from typing import Any

from .encoder import encode
from .errors import EncodeError


def encode_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Returns the MessagePack bytes of a call's arguments: a list of two items, the arguments by position and
    the arguments by name.

    Args:
        args: The arguments by position.
        kwargs: The arguments by name.

    Raises:
        EncodeError: An argument cannot be recorded. The message names the argument.
    """
    try:
        return encode([list(args), kwargs])
    except EncodeError:
        for position, argument in enumerate(args, 1):
            encode(argument, path=f"argument {position}")
        for name, argument in kwargs.items():
            encode(argument, path=f"argument {name!r}")
        raise
