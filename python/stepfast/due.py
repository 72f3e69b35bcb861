"""When an execution may begin."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from stepfast import bounds
from stepfast.errors import Invalid
from stepfast.shown import shown

#: As the engine takes it: whether it is an instant, and in microseconds.
Due = tuple[bool, int]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def due_of(delay: Any, start_at: Any) -> Due | None:
    """When an execution may begin; `None` for at once.

    Raises:
        Invalid: One of them is none of what it must be, or both are given.
    """
    if delay is not None and start_at is not None:
        raise Invalid("delay and start_at are both given: give one of them")
    if delay is not None:
        # centuries are as good as for ever
        bounds.number("delay", delay, 0, 1e11)
        return False, round(delay * 1e6)
    if start_at is None:
        return None
    if not isinstance(start_at, datetime) or start_at.tzinfo is None:
        raise Invalid(
            f"start_at is {shown(start_at)}, and must be a datetime with a time zone, as in "
            "datetime.now(timezone.utc) + timedelta(hours=1)"
        )
    return True, (start_at - _EPOCH) // timedelta(microseconds=1)
