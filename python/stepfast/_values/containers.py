"""Collections that MessagePack has no word for."""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Final, cast

from . import codes
from .codec import Codec, Label, Names, Read
from .errors import Refusal


def flat(mapping: Mapping[Any, Any]) -> list[Any]:
    """Key, value, key, value …"""
    return list(chain.from_iterable(mapping.items()))


def pairs(content: list[Any], start: int = 0) -> Iterator[tuple[Any, Any]]:
    """The opposite of `flat`."""
    return zip(content[start::2], content[start + 1 :: 2], strict=True)


def _python_dict(value: OrderedDict[Any, Any] | Counter[Any]) -> list[Any]:
    if value.__dict__:
        raise Refusal(f"this {type(value).__name__} has attributes of its own")
    return flat(value)


def _default_dict(value: defaultdict[Any, Any]) -> list[Any]:
    return [value.default_factory, *flat(value)]


def _deque(value: deque[Any]) -> list[Any]:
    return [value.maxlen, *value]


def _read_tuple(content: list[Any], _: Names) -> tuple[Any, ...]:
    return tuple(content)


def _read_set(content: list[Any], _: Names) -> set[Any]:
    return set(content)


def _read_frozenset(content: list[Any], _: Names) -> frozenset[Any]:
    return frozenset(content)


def _read_map(content: list[Any], _: Names) -> dict[Any, Any]:
    return dict(pairs(content))


def _read_ordered_dict(content: list[Any], _: Names) -> OrderedDict[Any, Any]:
    return OrderedDict(pairs(content))


def _read_default_dict(content: list[Any], _: Names) -> defaultdict[Any, Any]:
    return defaultdict(content[0], pairs(content, 1))


def _read_counter(content: list[Any], _: Names) -> Counter[Any]:
    return Counter(dict(pairs(content)))


def _read_deque(content: list[Any], _: Names) -> deque[Any]:
    return deque(content[1:], cast("int | None", content[0]))


MAP: Final = Codec(codes.MAP, flat, Label.PAIRS)

CODECS: Final[dict[type, Codec]] = {
    tuple: Codec(codes.TUPLE, list, Label.ITEMS),
    set: Codec(codes.SET, list, sorts=True),
    frozenset: Codec(codes.FROZENSET, list, sorts=True),
    OrderedDict: Codec(codes.ORDERED_DICT, _python_dict, Label.PAIRS),
    defaultdict: Codec(codes.DEFAULT_DICT, _default_dict, Label.PAIRS, offset=1),
    Counter: Codec(codes.COUNTER, _python_dict, Label.PAIRS),
    deque: Codec(codes.DEQUE, _deque, Label.ITEMS, offset=1),
}

READERS: Final[dict[int, Read]] = {
    codes.TUPLE: _read_tuple,
    codes.SET: _read_set,
    codes.FROZENSET: _read_frozenset,
    codes.MAP: _read_map,
    codes.ORDERED_DICT: _read_ordered_dict,
    codes.DEFAULT_DICT: _read_default_dict,
    codes.COUNTER: _read_counter,
    codes.DEQUE: _read_deque,
}
