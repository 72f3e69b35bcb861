"""Converts points in time between Python and the engine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from stepfast._validation.text import short_repr
from stepfast.errors import InvalidArgument

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def to_datetime(micros: int) -> datetime:
    """Converts microseconds since 1970 to a datetime in UTC.

    A time after the year 9999 becomes the last time that Python can represent.
    """
    try:
        return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)
    except OverflowError:
        # for example, the time limit is math.inf
        return datetime.max.replace(tzinfo=UTC)


def to_datetime_or_none(micros: int | None) -> datetime | None:
    """Converts microseconds since 1970 to a datetime in UTC; None stays None."""
    return None if micros is None else to_datetime(micros)


def to_timedelta(seconds: float) -> timedelta:
    """Converts seconds to a `timedelta`. A time span that is too long for Python becomes the longest possible
    one."""
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        # for example, the time limit is math.inf
        return timedelta.max


def instant_micros(
    what: str, at: Any, example: str = "datetime.now(timezone.utc) + timedelta(hours=1)"
) -> int:
    """Converts a datetime with a time zone to microseconds since 1970.

    Args:
        what: The name of the option, for the error message.
        at: The datetime, as the caller has given it.
        example: A correct value, for the error message.

    Raises:
        InvalidArgument: The value is no datetime, or has no time zone.
    """
    if not isinstance(at, datetime) or at.utcoffset() is None:
        raise InvalidArgument(
            f"{what} is {short_repr(at)}, and must be a datetime with a time zone, as in {example}"
        )
    return (at - _EPOCH) // timedelta(microseconds=1)
