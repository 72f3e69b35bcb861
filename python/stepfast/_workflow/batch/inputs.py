"""Checks of a batch's inputs."""

from __future__ import annotations

from typing import Final

from stepfast._validation import bounds
from stepfast._validation.text import short_repr
from stepfast.errors import InvalidArgument

#: The index of the last item of the largest batch.
MAX_INDEX: Final = 2**31 - 2


def check_index(index: int) -> int:
    """Returns the index of an item in its batch.

    Raises:
        InvalidArgument: The value cannot be an index.
    """
    bounds.check_count("index", index, 0, MAX_INDEX)
    return int(index)


def not_a_tuple_error(item: object, index: int, example: str) -> InvalidArgument:
    """Returns the error for an item of a batch that is no tuple of arguments.

    Args:
        item: The item.
        index: The index of the item in the batch.
        example: A call with right items.
    """
    return InvalidArgument(
        f"item {index} of the batch is {short_repr(item)}, and must be a tuple of arguments: write {example}"
    )


def with_index(index: int, error: Exception) -> Exception:
    """Returns the exception of an item that cannot be encoded, with the index of the item."""
    if isinstance(error, TypeError | InvalidArgument):
        error.args = (f"item {index} of the batch: {error}", *error.args[1:])
    else:
        error.add_note(f"raised for item {index} of the batch")
    return error


__all__ = ["check_index", "not_a_tuple_error", "with_index"]
