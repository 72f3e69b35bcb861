"""Codecs of collections that MessagePack does not have."""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Final, cast

from .. import codes
from ..codec import ClassFinder, Codec, ContentReader, Label
from ..errors import NotRecordable


def flatten_pairs(mapping: Mapping[Any, Any]) -> list[Any]:
    """Returns the items of a mapping as one list: key, value, key, value …"""
    return list(chain.from_iterable(mapping.items()))


def iter_pairs(content: list[Any], start: int = 0) -> Iterator[tuple[Any, Any]]:
    """Yields the pairs of a list that `flatten_pairs` has made."""
    return zip(content[start::2], content[start + 1 :: 2], strict=True)


def _reduce_mapping(value: OrderedDict[Any, Any] | Counter[Any]) -> list[Any]:
    if value.__dict__:
        raise NotRecordable(f"this {type(value).__name__} has attributes of its own")
    return flatten_pairs(value)


def _reduce_default_dict(value: defaultdict[Any, Any]) -> list[Any]:
    return [value.default_factory, *flatten_pairs(value)]


def _reduce_deque(value: deque[Any]) -> list[Any]:
    return [value.maxlen, *value]


def _read_tuple(content: list[Any], _: ClassFinder) -> tuple[Any, ...]:
    return tuple(content)


def _read_set(content: list[Any], _: ClassFinder) -> set[Any]:
    return set(content)


def _read_frozenset(content: list[Any], _: ClassFinder) -> frozenset[Any]:
    return frozenset(content)


def _read_map(content: list[Any], _: ClassFinder) -> dict[Any, Any]:
    return dict(iter_pairs(content))


def _read_ordered_dict(content: list[Any], _: ClassFinder) -> OrderedDict[Any, Any]:
    return OrderedDict(iter_pairs(content))


def _read_default_dict(content: list[Any], _: ClassFinder) -> defaultdict[Any, Any]:
    return defaultdict(content[0], iter_pairs(content, 1))


def _read_counter(content: list[Any], _: ClassFinder) -> Counter[Any]:
    return Counter(dict(iter_pairs(content)))


def _read_deque(content: list[Any], _: ClassFinder) -> deque[Any]:
    return deque(content[1:], cast("int | None", content[0]))


MAP: Final = Codec(codes.MAP, flatten_pairs, Label.PAIRS)

CODECS: Final[dict[type, Codec]] = {
    tuple: Codec(codes.TUPLE, list, Label.ITEMS),
    set: Codec(codes.SET, list, is_unordered=True),
    frozenset: Codec(codes.FROZENSET, list, is_unordered=True),
    OrderedDict: Codec(codes.ORDERED_DICT, _reduce_mapping, Label.PAIRS),
    defaultdict: Codec(codes.DEFAULT_DICT, _reduce_default_dict, Label.PAIRS, offset=1),
    Counter: Codec(codes.COUNTER, _reduce_mapping, Label.PAIRS),
    deque: Codec(codes.DEQUE, _reduce_deque, Label.ITEMS, offset=1),
}

READERS: Final[dict[int, ContentReader]] = {
    codes.TUPLE: _read_tuple,
    codes.SET: _read_set,
    codes.FROZENSET: _read_frozenset,
    codes.MAP: _read_map,
    codes.ORDERED_DICT: _read_ordered_dict,
    codes.DEFAULT_DICT: _read_default_dict,
    codes.COUNTER: _read_counter,
    codes.DEQUE: _read_deque,
}
