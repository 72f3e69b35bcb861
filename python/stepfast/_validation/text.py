"""Values in messages."""

from __future__ import annotations

from typing import Final

#: The maximum length of a value in a message, in characters. Messages are for people, and go into logs.
MAX_REPR_CHARS: Final = 200


def short_repr(value: object) -> str:
    """Returns the beginning of a value's `repr`, for a message."""
    try:
        text = repr(value)
    except Exception:
        # raised by a `__repr__` of the caller's own class
        text = object.__repr__(value)
    return text if len(text) <= MAX_REPR_CHARS else f"{text[:MAX_REPR_CHARS]}… ({len(text)} characters)"
