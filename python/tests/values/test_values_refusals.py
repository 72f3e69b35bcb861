"""Refusals of values that cannot be recorded, with their paths and advice, and the function `register`."""

import asyncio
import collections
import datetime
import decimal
import enum
import io
import re
import threading
import types
import zoneinfo
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from test_values import Box, Colour, Frozen, Point

from stepfast import InvalidArgument
from stepfast._values import codec, references, registry
from stepfast.values import DecodeError, EncodeError, decode, encode, register


class UserId(str):
    pass


class Count(int):
    pass


class Names(list[str]):
    pass


class Table(dict[str, int]):
    pass


class Moment(datetime.datetime):
    pass


class Parcel:
    def __init__(self, x: Any) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]


class ParcelChild(Parcel):
    pass


class Zone(datetime.tzinfo):
    pass


def make_cycle() -> Any:
    """Returns a value that contains itself."""
    inner: list[Any] = []
    inner.append({"a": (Box(inner),)})
    return {"x": inner}


def nest(wrap: Callable[[Any], Any], levels: int) -> Any:
    """Returns a number in this many levels of a container."""
    value: Any = 1
    for _ in range(levels):
        value = wrap(value)
    return value


def make_dict_with_attribute() -> Any:
    """Returns a dict of the standard library that has an attribute of its own."""
    value: Any = collections.OrderedDict(a=1)
    value.note = 1
    return value


def make_dynamic_member() -> Any:
    """Returns a member of an enum that has no name in this module."""
    members: Any = enum.Enum("Dynamic", "A")
    return members.A


async def return_nothing() -> None: ...


@pytest.mark.parametrize(
    ("value", "path", "type_name", "message"),
    [
        (object(), "", "object", "no codec is known for this type; convert it"),
        ([1, [Parcel(1)]], "[1][0]", "test_values_refusals.Parcel", "register a codec"),
        (Box([{"a": (1, Parcel(1))}]), ".content[0]['a'][1]", "test_values_refusals.Parcel", ""),
        (Point(1, Parcel(1)), ".y", "test_values_refusals.Parcel", ""),
        (Frozen(content=Parcel(1)), ".content", "test_values_refusals.Parcel", ""),
        (collections.deque([1, Parcel(1)], 5), "[1]", "test_values_refusals.Parcel", ""),
        (collections.OrderedDict(a=Parcel(1)), "['a']", "test_values_refusals.Parcel", ""),
        (collections.defaultdict(list, a=Parcel(1)), "['a']", "test_values_refusals.Parcel", ""),
        ({(1, 2): Parcel(1)}, "[(1, 2)]", "test_values_refusals.Parcel", ""),
        ({(Frozen(content=UserId("x")),): 1}, None, "test_values_refusals.UserId", "key ("),
        ({1: {"b": UserId("x")}}, "[1]['b']", "test_values_refusals.UserId", ""),
        ({UserId("x"): 1}, None, "test_values_refusals.UserId", "come back as a str"),
        (Count(1), "", "test_values_refusals.Count", "come back as a int, not as the subclass"),
        (Names(), "", "test_values_refusals.Names", "convert it to a list"),
        (Table(), "", "test_values_refusals.Table", "convert it to a dict"),
        (Moment(2024, 1, 1), "", "test_values_refusals.Moment", "convert it to a datetime"),
        ({"s": "a\ud800"}, "['s']", "str", "surrogate"),
        ({"\udcff": 1}, None, "str", "surrogate"),
        ([memoryview(b"x")], "[0]", "memoryview", "make it bytes"),
        ((b"x", memoryview(b"x" * 400)), "[1]", "memoryview", "make it bytes"),
        ([lambda: 1], "[0]", "function", "cannot be recorded"),
        ([len], "[0]", "builtin_function_or_method", "cannot be recorded"),
        ([[].append], "[0]", "builtin_function_or_method", "cannot be recorded"),
        ((i for i in ()), "", "generator", "list(...)"),
        (threading, "", "module", "its name"),
        (make_cycle(), "['x'][0]['a'][0].content", "list", "it contains itself"),
        (threading.Lock(), "", "_thread.lock", "return an id"),
        (io.BytesIO(), "", "_io.BytesIO", "return an id"),
        (list[int], "", "types.GenericAlias", ""),
        (..., "", "ellipsis", ""),
        ({}.keys(), "", "dict_keys", ""),
        (types.MappingProxyType({}), "", "mappingproxy", ""),
        (make_dict_with_attribute(), "", "collections.OrderedDict", "attributes of its own"),
        (
            datetime.datetime(2024, 1, 1, tzinfo=Zone()),
            "",
            "datetime.datetime",
            "zoneinfo.ZoneInfo",
        ),
        ({"d": collections.defaultdict(lambda: 1)}, "['d']", "function", ""),
        (make_dynamic_member(), "", "test_values_refusals.Dynamic", "no Dynamic in module"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_unrecordable_value_is_refused_with_its_path(
    value: object, path: str | None, type_name: str, message: str
) -> None:
    with pytest.raises(EncodeError) as caught:
        encode(value, path="result")
    error = caught.value
    assert error.code == "SF-0030"
    assert isinstance(error, TypeError)
    if path is not None:
        assert error.path == f"result{path}"
    else:
        assert error.path.startswith("key ")
        assert error.path.endswith("of result") or ".content" in error.path
    assert error.type_name == type_name
    assert str(error).startswith(f"{error.path} cannot be recorded: its type is {type_name}, and ")
    assert message in str(error)
    assert "; " in str(error)


def test_time_zone_read_from_file_is_refused() -> None:
    keyless = zoneinfo.ZoneInfo.from_file(io.BytesIO(make_time_zone_file()))
    with pytest.raises(EncodeError, match="read from a file"):
        encode(datetime.datetime(2024, 1, 1, tzinfo=keyless))


def make_time_zone_file() -> bytes:
    """Returns the content of the smallest time zone file, that of UTC."""
    head = b"TZif" + b"\0" * 16 + b"".join(n.to_bytes(4, "big") for n in (0, 0, 0, 0, 1, 4))
    return head + b"\0" * 6 + b"UTC\0"


def test_coroutine_is_refused() -> None:
    call = return_nothing()
    with pytest.raises(EncodeError, match="await it first"):
        encode(call)
    call.close()
    with pytest.raises(EncodeError, match="no codec"):
        encode(asyncio.Lock())


WRAPPERS: list[Callable[[Any], Any]] = [
    lambda x: [x],
    lambda x: {"a": x},
    lambda x: {1: x},
    lambda x: (x,),
    lambda x: {(): x},
    Box,
    lambda x: frozenset([x]),
    lambda x: [(Box({2: x}),)],
]


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_value_nested_too_deeply_is_refused(wrap: Callable[[Any], Any]) -> None:
    # levels around each limit and far beyond: the process never crashes, and encoded values can be decoded
    for levels in [*range(20, 40), *range(95, 105), *range(250, 260), 2_000, 100_000]:
        value = nest(wrap, levels)
        try:
            data = encode(value)
        except EncodeError as error:
            assert "nested too deeply" in str(error)
            assert levels > 30
            continue
        assert levels < 260
        decoded = decode(data)
        assert type(decoded) is type(value)
        assert encode(decoded) == data


@pytest.mark.parametrize(("wrap", "limit"), [(lambda x: (x,), 100), (Box, 100), (lambda x: [x], 255)])
def test_deepest_value_is_decoded_at_any_stack_depth(wrap: Callable[[Any], Any], limit: int) -> None:
    def decode_in_frames(frames: int, data: bytes) -> Any:
        return decode_in_frames(frames - 1, data) if frames else decode(data)

    data = encode(nest(wrap, limit))
    assert encode(decode_in_frames(500, data)) == data
    with pytest.raises(EncodeError, match="nested too deeply"):
        encode(nest(wrap, limit + 1))


def test_error_of_registered_codec_is_reported() -> None:
    class FailingCodec:
        pass

    def fail(_: object) -> object:
        raise LookupError("no luck")

    register(FailingCodec, encode=fail, decode=fail, name="refusals.FailingCodec")
    with pytest.raises(EncodeError, match=r"value\[0\].*LookupError: no luck") as caught:
        encode([FailingCodec()])
    assert isinstance(caught.value.__cause__, LookupError)
    registry.register(FailingCodec, aliases=["refusals.Worse"])
    codec.own_codecs[FailingCodec] = (lambda _: 1, fail)
    number_codec = registry._registered_codec(FailingCodec, lambda _: 1)  # type: ignore[attr-defined]
    registry.codec_by_class[FailingCodec] = number_codec
    with pytest.raises(DecodeError, match="LookupError: no luck"):
        decode(encode([FailingCodec()]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the bytes are no recorded value"),
        (b"\xc1", "the bytes are no recorded value"),
        (b"\xa5abc", "the bytes are no recorded value"),
        (b"\xd4\x7f\x01", "extension 127 is not known"),
        (b"\xd4\xff\x01", "extension -1 is not known"),
        (b"\xd4\x01\xc1", "the bytes are no recorded value|cannot be rebuilt"),
        (b"\xd4\x0f\x01", "cannot be rebuilt: TypeError"),
    ],
)
def test_malformed_value_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(DecodeError, match=message) as caught:
        decode(data)
    assert caught.value.code == "SF-0031"
    assert isinstance(caught.value, ValueError)


@pytest.fixture(autouse=True)
def registry_reset() -> Iterator[None]:
    """Drops the registrations of a test at its end."""
    registries: list[dict[Any, Any]] = [
        codec.own_codecs,
        registry.codec_by_class,
        references.class_of_name,
        references.name_of_class,
    ]
    snapshots = [dict(each) for each in registries]
    yield
    for each, snapshot in zip(registries, snapshots, strict=True):
        each.clear()
        each.update(snapshot)


def register_parcel(**names: Any) -> None:
    """Registers `Parcel` with a codec."""
    register(Parcel, encode=lambda parcel: [parcel.x], decode=lambda parts: Parcel(*parts), **names)


def test_registered_class_survives_round_trip() -> None:
    register_parcel()
    value = Parcel({"a": (1, Parcel(2))})
    assert decode(encode([value])) == [value]
    assert encode([value], path="x") == encode([value])
    with pytest.raises(EncodeError) as caught:
        encode(Parcel(object()), path="r")
    assert caught.value.type_name == "object"


def test_subclass_of_registered_class_is_refused() -> None:
    register_parcel()
    with pytest.raises(EncodeError, match="come back as a test_values_refusals.Parcel"):
        encode(ParcelChild(1))


def test_registered_subclass_of_text_survives_round_trip() -> None:
    register(UserId, encode=str, decode=UserId)
    decoded = decode(encode({"id": UserId("x"), UserId("k"): 1}))
    assert type(decoded["id"]) is UserId
    assert [type(key) for key in decoded] == [str, UserId]


def test_register_works_as_decorator() -> None:
    @register
    class Bare:
        pass

    @register(name="shop.item")
    class Item(enum.Enum):
        A = 1

    assert isinstance(Bare, type)
    assert decode(encode(Item.A)) is Item.A
    assert b"shop.item" in encode(Item.A)


def test_alias_finds_renamed_class() -> None:
    data = encode(Colour.RED)
    with pytest.raises(DecodeError, match="no class Gone.*keep the old name|Keep the old name"):
        decode(data.replace(b"Colour", b"Colou_"))
    register(Colour, aliases=["test_values:Colou_"])
    assert decode(data.replace(b"Colour", b"Colou_")) is Colour.RED
    assert decode(encode(Colour.RED)) is Colour.RED


def test_unregistered_name_is_reported() -> None:
    register_parcel(name="parcel")
    data = encode(Parcel(1))
    del references.class_of_name["parcel"]
    with pytest.raises(DecodeError, match="no class is registered as 'parcel'"):
        decode(data)


def test_unregistered_codec_is_reported() -> None:
    register_parcel()
    data = encode(Parcel(1))
    del codec.own_codecs[Parcel]
    with pytest.raises(DecodeError, match="no codec is registered for test_values_refusals.Parcel"):
        decode(data)


def test_colliding_registration_is_refused() -> None:
    register_parcel(name="parcel")
    with pytest.raises(InvalidArgument, match="has a codec already"):
        register_parcel()
    with pytest.raises(InvalidArgument, match="is registered as 'parcel' already"):
        register(Parcel, name="other")
    with pytest.raises(InvalidArgument, match="the name 'parcel' is taken by test_values_refusals.Parcel"):
        register(ParcelChild, encode=vars, decode=ParcelChild, name="parcel")
    with pytest.raises(InvalidArgument, match="is taken"):
        register(ParcelChild, aliases=["parcel"])
    with pytest.raises(InvalidArgument, match="the name '' "):
        register(ParcelChild, aliases=[""])
    for cls in (int, dict, tuple, decimal.Decimal, re.Pattern):
        with pytest.raises(InvalidArgument, match="cannot be replaced"):
            register(cls, name="x")
    with pytest.raises(TypeError, match="both encode and decode"):
        register(ParcelChild, encode=vars)
