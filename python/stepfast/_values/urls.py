"""URLs of pydantic: immutable, and equal if made of the same text."""

import sys
from typing import Any, Final

from . import codes
from .codec import Codec, Names, Read, expect
from .errors import Refusal
from .references import name_of


def _bases() -> tuple[type, ...]:
    networks: Any = sys.modules.get("pydantic.networks")
    bases = (getattr(networks, name, None) for name in ("_BaseUrl", "_BaseMultiHostUrl"))
    return tuple(base for base in bases if isinstance(base, type))


def codec_of(cls: type) -> Codec | None:
    """The codec of a class of URLs; None if it is none."""
    if not issubclass(cls, _bases()):
        return None
    name = name_of(cls)
    make: Any = cls

    def reduce(value: object) -> list[str]:
        text = str(value)
        if str(make(text)) != text:
            raise Refusal("another URL is made of its text", "record the text: str(url)")
        return [name, text]

    return Codec(codes.URL, reduce)


def _read(content: list[str], names: Names) -> object:
    name, text = content
    cls: Any = names.find(name)
    expect(cls, _bases(), "URL of pydantic")
    return cls(text)


READERS: Final[dict[int, Read]] = {codes.URL: _read}
