"""Points in time, as Python has them and as the engine has them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def to_datetime(micros: int) -> datetime:
    """The time so many microseconds after 1970, in UTC; the last that Python knows for what is later."""
    try:
        return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)
    except OverflowError:
        # a limit of math.inf
        return datetime.max.replace(tzinfo=UTC)


def to_datetime_or_none(micros: int | None) -> datetime | None:
    """The same where there may be none."""
    return None if micros is None else to_datetime(micros)


def to_micros(at: datetime | None) -> int | None:
    """Microseconds since 1970; a time without a zone is local."""
    return None if at is None else round(at.timestamp() * 1_000_000)
