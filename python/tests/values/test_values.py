"""Round trips of values through `encode` and `decode`, and refusals of values that would change."""

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import ipaddress
import math
import pathlib
import re
import struct
import uuid
import zoneinfo
from typing import Any, NamedTuple

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfast.values import DecodeError, EncodeError, decode, encode


class Colour(enum.Enum):
    RED = 1
    GREEN = "g"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Word(enum.StrEnum):
    A = "a"
    B = "b"


class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()
    BOTH = READ | WRITE


class Bits(enum.IntFlag, boundary=enum.KEEP):
    ONE = 1
    TWO = 2


class Point(NamedTuple):
    x: Any
    y: Any = 0


@dataclasses.dataclass
class Box:
    content: Any
    label: str = "box"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    content: Any


def is_same(value: Any, other: Any) -> bool:
    """Returns whether two values are equal, with equal types and order at every level."""
    if type(value) is not type(other):
        return False
    match value:
        case float():
            return struct.pack("d", value) == struct.pack("d", other) or (
                math.isnan(value) and math.isnan(other)
            )
        case complex():
            return is_same(value.real, other.real) and is_same(value.imag, other.imag)
        case decimal.Decimal():
            return value.as_tuple() == other.as_tuple()
        case datetime.datetime() | datetime.time():
            has_same_fields = value.replace(tzinfo=None) == other.replace(tzinfo=None)
            return has_same_fields and value.fold == other.fold and repr(value.tzinfo) == repr(other.tzinfo)
        case set() | frozenset():
            remaining = list(other)
            for item in value:
                index = next((i for i, each in enumerate(remaining) if is_same(item, each)), None)
                if index is None:
                    return False
                remaining.pop(index)
            return not remaining
        case collections.deque():
            return value.maxlen == other.maxlen and is_same(list(value), list(other))
        case slice():
            return is_same([value.start, value.stop, value.step], [other.start, other.stop, other.step])
        case collections.defaultdict() if value.default_factory is not other.default_factory:
            return False
        case dict():
            return is_same([*value.items()], [*other.items()])
        case list() | tuple():
            return len(value) == len(other) and all(map(is_same, value, other))
        case Box():
            return is_same(vars(value), vars(other))
        case Frozen():
            return is_same(value.content, other.content)
        case _:
            return bool(value == other)


def assert_round_trip(value: Any) -> None:
    """Asserts that a value survives encoding and decoding unchanged."""
    decoded = decode(encode(value))
    assert is_same(decoded, value), f"{value!r} was decoded as {decoded!r}"
    assert encode(decoded) == encode(value)


ZONES = [zoneinfo.ZoneInfo(key) for key in ("Europe/Berlin", "America/New_York", "UTC")]
OFFSETS = st.timedeltas(datetime.timedelta(hours=-23), datetime.timedelta(hours=23))
TIMEZONES = st.one_of(
    st.none(),
    st.just(datetime.UTC),
    st.sampled_from(ZONES),
    st.builds(datetime.timezone, OFFSETS),
    st.builds(datetime.timezone, OFFSETS, st.text(st.characters(exclude_categories=["Cs"]))),
)
TEXTS = st.text()
PLAIN_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(),
    TEXTS,
    st.binary(),
)
# values that are hashable, and equal to themselves after a round trip
HASHABLE_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    TEXTS,
    st.binary(),
    st.sampled_from([*Colour, *Level, *Word, *Access, Access(0), Bits(13), Bits(3)]),
    st.uuids(),
    st.dates(),
    st.times(timezones=TIMEZONES),
    st.timedeltas(),
    st.datetimes(datetime.datetime(2, 1, 1), datetime.datetime(9998, 1, 1), timezones=st.none()),
    st.decimals(allow_nan=False),
    st.fractions(),
    st.ip_addresses(),
    st.builds(pathlib.PurePosixPath, st.text(st.characters(exclude_categories=["Cs"]))),
    st.builds(pathlib.PureWindowsPath, st.text("abc/\\:.", max_size=9)).filter(
        lambda path: pathlib.PureWindowsPath(str(path)) == path
    ),
    st.builds(range, st.integers(), st.integers(), st.integers(1)),
)
HASHABLE_VALUES = st.recursive(
    HASHABLE_SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.frozensets(inner, max_size=3),
        st.tuples(inner, inner).map(Point._make),
        inner.map(lambda content: Frozen(content=content)),
    ),
    max_leaves=4,
)
SCALARS = st.one_of(
    PLAIN_VALUES,
    HASHABLE_VALUES,
    st.complex_numbers(),
    st.decimals(),
    st.sampled_from([decimal.Decimal("sNaN7"), decimal.Decimal("-0E+9"), decimal.Decimal("-NaN12")]),
    st.binary().map(bytearray),
    st.datetimes(timezones=TIMEZONES),
    st.builds(slice, st.none() | st.integers(), st.none() | st.integers()),
    st.sampled_from([re.compile("a+", re.IGNORECASE), re.compile(b"(?s)x"), int, Point, datetime.datetime]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=5).map(tuple),
        st.dictionaries(st.text(max_size=5), inner, max_size=5),
        st.dictionaries(HASHABLE_VALUES, inner, max_size=5),
        st.sets(HASHABLE_VALUES, max_size=5),
        st.frozensets(HASHABLE_VALUES, max_size=5),
        st.dictionaries(HASHABLE_VALUES, inner, max_size=3).map(collections.OrderedDict),
        st.dictionaries(HASHABLE_VALUES, st.integers(), max_size=3).map(collections.Counter),
        st.builds(
            collections.defaultdict,
            st.sampled_from([None, list, int, Box]),
            st.dictionaries(HASHABLE_VALUES, inner, max_size=3),
        ),
        st.builds(collections.deque, st.lists(inner, max_size=5), st.none() | st.integers(5, 9)),
        inner.map(Point),
        st.builds(Box, inner, TEXTS),
        inner.map(lambda content: Frozen(content=content)),
    ),
    max_leaves=25,
)


@given(VALUES)
def test_random_value_survives_round_trip(value: Any) -> None:
    assert_round_trip(value)


@given(
    st.recursive(
        PLAIN_VALUES,
        lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
        max_leaves=30,
    )
)
def test_plain_values_are_plain_messagepack(value: Any) -> None:
    data = encode(value)
    assert data == ormsgpack.packb(value)
    assert is_same(decode(data), value)


@given(st.dictionaries(PLAIN_VALUES.filter(lambda key: str(key) != "nan"), PLAIN_VALUES))
def test_plain_keys_are_plain_messagepack(value: Any) -> None:
    assert is_same(ormsgpack.unpackb(encode(value), option=ormsgpack.OPT_NON_STR_KEYS), value)
    assert_round_trip(value)


@given(st.sets(st.text()) | st.sets(st.integers() | st.floats(allow_nan=False)))
def test_equal_sets_have_equal_bytes(value: set[Any]) -> None:
    other: set[Any] = set()
    for item in sorted(value, key=repr):
        other.add(item)
    assert encode(other) == encode(value)
    # a key of another type makes the encoder use its slower path
    assert encode({(): other}).endswith(encode(value)[-len(value) :])


@given(st.binary())
def test_random_bytes_are_decoded_or_refused(data: bytes) -> None:
    try:
        decode(data)
    except ValueError as error:
        assert getattr(error, "code", None) == "SF-0031"


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("-inf"),
        -0.0,
        True,
        1,
        1.0,
        1 << 63,
        (1 << 64) - 1,
        1 << 64,
        -(1 << 63),
        -(1 << 63) - 1,
        10**5000,
        complex(-0.0, float("nan")),
        [bytearray(b"x"), {"a": bytearray()}],
        [b"x" * 300, bytearray(b"x" * 300)],
        [b"x" * 70_000, [[bytearray(b"x" * 70_000)]]],
        {bytes(200): {}, "a": [bytes(3)]},
        (),
        [[], {}, (), set(), frozenset()],
        {1: "int", "1": "str", None: "none", b"1": "bytes", 2.5: "float", False: "bool"},
        {1 << 70: 1},
        {float("inf"): 1, -0.0: 2},
        {(1, 2): {Colour.RED: {frozenset({1}): 3}}},
        {Word.A: 1, "b": 2},
        {Level.LOW: 1, 2: 2},
        collections.OrderedDict(b=1, a=2),
        collections.deque([1, 2], maxlen=2),
        collections.Counter("abca"),
        collections.defaultdict(Box, {"a": Box(1)}),
        Access.BOTH,
        Access(0),
        Bits(8),
        ~Bits.ONE,
        decimal.Decimal("1E+3"),
        decimal.Decimal("1.50"),
        fractions.Fraction(-1, 3),
        uuid.UUID(int=0),
        datetime.datetime.min,
        datetime.datetime.max,
        datetime.datetime.max.replace(tzinfo=ZONES[0]),
        datetime.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZONES[0]),
        datetime.datetime(2024, 10, 27, 2, 30, fold=0, tzinfo=ZONES[0]),
        datetime.datetime(2024, 10, 27, 2, 30, fold=1),
        datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(0), "GMT")),
        datetime.time(1, 2, 3, 4, tzinfo=datetime.UTC, fold=1),
        datetime.timedelta.min,
        datetime.timedelta.max,
        pathlib.Path("/a/b"),
        pathlib.PurePosixPath(),
        ipaddress.ip_network("10.0.0.0/8"),
        ipaddress.ip_interface("10.1.2.3/8"),
        ipaddress.ip_address("fe80::1%eth0"),
        range(10, 0, -3),
        slice(None, -1),
        re.compile("(?i)ä.b", re.DOTALL | re.VERBOSE),
        int,
        [1, [2, [3, (4, [5])]]],
    ],
    ids=lambda value: type(value).__name__,
)
def test_edge_case_survives_round_trip(value: Any) -> None:
    assert_round_trip(value)
    assert_round_trip({"in": [value], 1: (value,)})


def test_path_unlike_its_text_survives_or_is_refused() -> None:
    path = pathlib.PureWindowsPath("//://")
    if pathlib.PureWindowsPath(str(path)) == path:
        assert_round_trip(path)
    else:
        with pytest.raises(EncodeError, match="its text makes another path"):
            encode(path)


def test_locale_pattern_is_refused() -> None:
    with pytest.raises(EncodeError, match="locale"):
        encode(re.compile(b"x", re.LOCALE))


def test_path_of_another_system_is_reported() -> None:
    other, here = sorted(["WindowsPath", "PosixPath"], key=lambda name: name == type(pathlib.Path()).__name__)
    content = ormsgpack.packb([other, "a"])
    with pytest.raises(DecodeError, match=f"recorded as {other}, which this system does not support"):
        decode(ormsgpack.packb(ormsgpack.Ext(15, content)))
    assert decode(ormsgpack.packb(ormsgpack.Ext(15, ormsgpack.packb([here, "a"])))) == pathlib.Path("a")


def test_unknown_time_zone_is_reported() -> None:
    data = encode(datetime.datetime(2024, 1, 1, tzinfo=ZONES[0]))
    with pytest.raises(DecodeError, match="Europe/Perlin.*tzdata"):
        decode(data.replace(b"Berlin", b"Perlin"))


def test_removed_enum_member_is_reported() -> None:
    for value, old in ((Colour.RED, b"RED"), (Access.READ, b"READ")):
        data = encode(value).replace(old, b"X" * len(old))
        with pytest.raises(DecodeError, match="has no member X.*add the old name as an alias"):
            decode(data)


def test_shared_part_is_decoded_twice() -> None:
    part = [1]
    decoded = decode(encode([part, part]))
    assert decoded == [[1], [1]]
    assert decoded[0] is not decoded[1]


def test_bytearrays_and_memoryviews_are_decoded() -> None:
    data = encode((1, "a"))
    assert decode(bytearray(data)) == decode(memoryview(data)) == (1, "a")


def test_nan_is_decoded_inside_containers() -> None:
    decoded = decode(encode({"nan": math.nan, "more": (math.nan,)}))
    assert math.isnan(decoded["nan"])
    assert math.isnan(decoded["more"][0])
