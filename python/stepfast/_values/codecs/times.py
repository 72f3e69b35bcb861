"""Codecs of dates, times and time zones."""

import datetime
import zoneinfo
from typing import Any, Final

from .. import codes
from ..codec import ClassFinder, Codec, ContentReader
from ..errors import DecodeError, NotRecordable, type_name

_UTC: Final = datetime.UTC


def _reduce_zone(zone: datetime.tzinfo | None) -> object:
    if zone is None:
        return None
    if type(zone) is zoneinfo.ZoneInfo:
        if zone.key is None:  # pyright: ignore[reportUnnecessaryComparison]
            raise NotRecordable("its time zone was read from a file and has no key")
        return zone.key
    if type(zone) is datetime.timezone:
        offset = zone.utcoffset(None)
        span = [offset.days, offset.seconds, offset.microseconds]
        is_named = repr(zone) != repr(datetime.timezone(offset))
        return [*span, str(zone)] if is_named else span
    raise NotRecordable(
        f"its time zone is a {type_name(type(zone))}",
        "use zoneinfo.ZoneInfo or datetime.timezone",
    )


def _read_zone(content: Any) -> datetime.tzinfo | None:
    if content is None:
        return None
    if isinstance(content, str):
        try:
            return zoneinfo.ZoneInfo(content)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError) as error:
            raise DecodeError(
                f"time zone {content!r} is not known here: install the package tzdata, or a newer one"
            ) from error
    days, seconds, microseconds, *name = content
    return datetime.timezone(datetime.timedelta(days, seconds, microseconds), *name)


def _reduce_moment(value: datetime.datetime | datetime.time) -> object:
    zone = value.tzinfo
    if value.fold == 0 and (zone is None or zone is _UTC):
        return value.isoformat()
    return [value.replace(tzinfo=None).isoformat(), value.fold, _reduce_zone(zone)]


def _read_datetime(content: Any, _: ClassFinder) -> datetime.datetime:
    if isinstance(content, str):
        return datetime.datetime.fromisoformat(content)
    text, fold, zone = content
    plain = datetime.datetime.fromisoformat(text)
    return plain.replace(fold=fold, tzinfo=_read_zone(zone))


def _read_time(content: Any, _: ClassFinder) -> datetime.time:
    if isinstance(content, str):
        return datetime.time.fromisoformat(content)
    text, fold, zone = content
    return datetime.time.fromisoformat(text).replace(fold=fold, tzinfo=_read_zone(zone))


def _read_date(content: str, _: ClassFinder) -> datetime.date:
    return datetime.date.fromisoformat(content)


def _reduce_timedelta(value: datetime.timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


def _read_timedelta(content: list[int], _: ClassFinder) -> datetime.timedelta:
    return datetime.timedelta(*content)


CODECS: Final[dict[type, Codec]] = {
    datetime.datetime: Codec(codes.DATETIME, _reduce_moment),
    datetime.date: Codec(codes.DATE, datetime.date.isoformat),
    datetime.time: Codec(codes.TIME, _reduce_moment),
    datetime.timedelta: Codec(codes.TIMEDELTA, _reduce_timedelta),
}

READERS: Final[dict[int, ContentReader]] = {
    codes.DATETIME: _read_datetime,
    codes.DATE: _read_date,
    codes.TIME: _read_time,
    codes.TIMEDELTA: _read_timedelta,
}
