"""Values in messages."""

from __future__ import annotations

from typing import Final

#: What is longer is cut: a message is for people, and goes into logs.
LONGEST: Final = 200


def shown(value: object) -> str:
    """Returns a value as a message shows it: the beginning of its `repr`."""
    try:
        text = repr(value)
    except Exception:
        # of a class of the caller's own
        text = object.__repr__(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text)} characters)"
