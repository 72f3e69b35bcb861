"""The text of values in error messages."""

from __future__ import annotations

from typing import Final

#: The maximum length of a value in an error message, in characters. A longer value would make the message
#: hard to read.
MAX_REPR_CHARS: Final = 200


def short_repr(value: object) -> str:
    """Returns a value's `repr` for an error message, shortened to `MAX_REPR_CHARS` characters."""
    try:
        text = repr(value)
    except Exception:
        # the `__repr__` of the caller's class has raised an exception
        text = object.__repr__(value)
    if len(text) <= MAX_REPR_CHARS:
        return text
    # the quotes are not part of the value
    characters = len(value) if isinstance(value, str) else len(text)
    return f"{text[:MAX_REPR_CHARS]}… ({characters} characters)"
