"""Whatever is encoded comes back as it was, or is refused."""

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


def same(one: Any, other: Any) -> bool:
    """Equal, of the same types at every level, in the same order."""
    if type(one) is not type(other):
        return False
    match one:
        case float():
            return struct.pack("d", one) == struct.pack("d", other) or (math.isnan(one) and math.isnan(other))
        case complex():
            return same(one.real, other.real) and same(one.imag, other.imag)
        case decimal.Decimal():
            return one.as_tuple() == other.as_tuple()
        case datetime.datetime() | datetime.time():
            plain = one.replace(tzinfo=None) == other.replace(tzinfo=None)
            return plain and one.fold == other.fold and repr(one.tzinfo) == repr(other.tzinfo)
        case set() | frozenset():
            left = list(other)
            for item in one:
                found = next((i for i, each in enumerate(left) if same(item, each)), None)
                if found is None:
                    return False
                left.pop(found)
            return not left
        case collections.deque():
            return one.maxlen == other.maxlen and same(list(one), list(other))
        case slice():
            return same([one.start, one.stop, one.step], [other.start, other.stop, other.step])
        case collections.defaultdict() if one.default_factory is not other.default_factory:
            return False
        case dict():
            return same([*one.items()], [*other.items()])
        case list() | tuple():
            return len(one) == len(other) and all(map(same, one, other))
        case Box():
            return same(vars(one), vars(other))
        case Frozen():
            return same(one.content, other.content)
        case _:
            return bool(one == other)


def assert_faithful(value: Any) -> None:
    back = decode(encode(value))
    assert same(back, value), f"{value!r} came back as {back!r}"
    assert encode(back) == encode(value)


ZONES = [zoneinfo.ZoneInfo(key) for key in ("Europe/Berlin", "America/New_York", "UTC")]
OFFSETS = st.timedeltas(datetime.timedelta(hours=-23), datetime.timedelta(hours=23))
TIMEZONES = st.one_of(
    st.none(),
    st.just(datetime.UTC),
    st.sampled_from(ZONES),
    st.builds(datetime.timezone, OFFSETS),
    st.builds(datetime.timezone, OFFSETS, st.text(st.characters(exclude_categories=["Cs"]))),
)
TEXT = st.text()
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(),
    TEXT,
    st.binary(),
)
# hashable, and equal to itself after a round trip
KEYS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    TEXT,
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
HASHABLE = st.recursive(
    KEYS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.frozensets(inner, max_size=3),
        st.tuples(inner, inner).map(Point._make),
        inner.map(lambda content: Frozen(content=content)),
    ),
    max_leaves=4,
)
SCALARS = st.one_of(
    PLAIN,
    HASHABLE,
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
        st.dictionaries(HASHABLE, inner, max_size=5),
        st.sets(HASHABLE, max_size=5),
        st.frozensets(HASHABLE, max_size=5),
        st.dictionaries(HASHABLE, inner, max_size=3).map(collections.OrderedDict),
        st.dictionaries(HASHABLE, st.integers(), max_size=3).map(collections.Counter),
        st.builds(
            collections.defaultdict,
            st.sampled_from([None, list, int, Box]),
            st.dictionaries(HASHABLE, inner, max_size=3),
        ),
        st.builds(collections.deque, st.lists(inner, max_size=5), st.none() | st.integers(5, 9)),
        inner.map(Point),
        st.builds(Box, inner, TEXT),
        inner.map(lambda content: Frozen(content=content)),
    ),
    max_leaves=25,
)


@given(VALUES)
def test_values_come_back(value: Any) -> None:
    assert_faithful(value)


@given(
    st.recursive(
        PLAIN,
        lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
        max_leaves=30,
    )
)
def test_plain_values_are_plain_messagepack(value: Any) -> None:
    data = encode(value)
    assert data == ormsgpack.packb(value)
    assert same(decode(data), value)


@given(st.dictionaries(PLAIN.filter(lambda key: str(key) != "nan"), PLAIN))
def test_plain_keys_are_plain_messagepack(value: Any) -> None:
    assert same(ormsgpack.unpackb(encode(value), option=ormsgpack.OPT_NON_STR_KEYS), value)
    assert_faithful(value)


@given(st.sets(st.text()) | st.sets(st.integers() | st.floats(allow_nan=False)))
def test_equal_sets_give_equal_bytes(value: set[Any]) -> None:
    other: set[Any] = set()
    for item in sorted(value, key=repr):
        other.add(item)
    assert encode(other) == encode(value)
    # also the careful way, which keys of other types lead to
    assert encode({(): other}).endswith(encode(value)[-len(value) :])


@given(st.binary())
def test_bytes_that_are_no_value_are_refused_or_read(data: bytes) -> None:
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
def test_particular_values_come_back(value: Any) -> None:
    assert_faithful(value)
    assert_faithful({"in": [value], 1: (value,)})


def test_a_path_that_is_not_its_text_comes_back_or_is_refused() -> None:
    path = pathlib.PureWindowsPath("//://")
    if pathlib.PureWindowsPath(str(path)) == path:
        assert_faithful(path)
    else:
        with pytest.raises(EncodeError, match="its text makes another path"):
            encode(path)


def test_a_pattern_of_a_locale_is_refused() -> None:
    with pytest.raises(EncodeError, match="locale"):
        encode(re.compile(b"x", re.LOCALE))


def test_a_path_of_another_system_is_told() -> None:
    other, here = sorted(["WindowsPath", "PosixPath"], key=lambda name: name == type(pathlib.Path()).__name__)
    content = ormsgpack.packb([other, "a"])
    with pytest.raises(DecodeError, match=f"recorded as {other}, which this system does not support"):
        decode(ormsgpack.packb(ormsgpack.Ext(15, content)))
    assert decode(ormsgpack.packb(ormsgpack.Ext(15, ormsgpack.packb([here, "a"])))) == pathlib.Path("a")


def test_a_zone_that_is_not_known_is_told() -> None:
    data = encode(datetime.datetime(2024, 1, 1, tzinfo=ZONES[0]))
    with pytest.raises(DecodeError, match="Europe/Perlin.*tzdata"):
        decode(data.replace(b"Berlin", b"Perlin"))


def test_a_member_that_went_away_is_told() -> None:
    for value, old in ((Colour.RED, b"RED"), (Access.READ, b"READ")):
        data = encode(value).replace(old, b"X" * len(old))
        with pytest.raises(DecodeError, match="has no member X.*keep the old name as an alias"):
            decode(data)


def test_a_shared_part_comes_back_twice() -> None:
    part = [1]
    back = decode(encode([part, part]))
    assert back == [[1], [1]]
    assert back[0] is not back[1]


def test_memory_that_is_not_bytes_is_read() -> None:
    data = encode((1, "a"))
    assert decode(bytearray(data)) == decode(memoryview(data)) == (1, "a")


def test_nan_keeps_its_place() -> None:
    back = decode(encode({"nan": math.nan, "more": (math.nan,)}))
    assert math.isnan(back["nan"])
    assert math.isnan(back["more"][0])
