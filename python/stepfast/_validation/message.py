"""Checks of the options of messages."""

from __future__ import annotations

from stepfast._validation import bounds


def check_message(topic: str, message_id: str | None) -> None:
    """Raises InvalidArgument if no message can have the topic or the id."""
    bounds.check_name("topic", topic)
    if message_id is not None:
        bounds.check_name("message_id", message_id, bounds.MAX_ID_BYTES)


__all__ = ["check_message"]
