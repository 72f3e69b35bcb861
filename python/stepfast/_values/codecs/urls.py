"""Codec of pydantic's URLs, which are immutable, and equal if they have the same text."""

import sys
from typing import Any, Final

from .. import codes
from ..codec import ClassFinder, Codec, ContentReader, require_subclass
from ..errors import NotRecordable
from ..references import name_of


def _url_classes() -> tuple[type, ...]:
    networks: Any = sys.modules.get("pydantic.networks")
    bases = (getattr(networks, name, None) for name in ("_BaseUrl", "_BaseMultiHostUrl"))
    return tuple(base for base in bases if isinstance(base, type))


def codec_of(cls: type) -> Codec | None:
    """Returns the codec of a URL class; None for any other class."""
    if not issubclass(cls, _url_classes()):
        return None
    name = name_of(cls)
    make: Any = cls

    def reduce(value: object) -> list[str]:
        text = str(value)
        if str(make(text)) != text:
            raise NotRecordable("its text makes another URL", "record the text: str(url)")
        return [name, text]

    return Codec(codes.URL, reduce)


def _read_url(content: list[str], finder: ClassFinder) -> object:
    name, text = content
    cls: Any = finder.find(name)
    require_subclass(cls, _url_classes(), "URL of pydantic")
    return cls(text)


READERS: Final[dict[int, ContentReader]] = {codes.URL: _read_url}
