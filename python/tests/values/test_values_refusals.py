"""What is refused when it is recorded, where it stands, and what to do; and `register`."""

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


class Own:
    def __init__(self, x: Any) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]


class OwnChild(Own):
    pass


class Zone(datetime.tzinfo):
    pass


def cycle() -> Any:
    inside: list[Any] = []
    inside.append({"a": (Box(inside),)})
    return {"x": inside}


def nested(wrap: Callable[[Any], Any], levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = wrap(value)
    return value


def attributed() -> Any:
    value: Any = collections.OrderedDict(a=1)
    value.note = 1
    return value


async def coroutine() -> None: ...


@pytest.mark.parametrize(
    ("value", "path", "type_name", "words"),
    [
        (object(), "", "object", "no codec is known for this type; convert it"),
        ([1, [Own(1)]], "[1][0]", "test_values_refusals.Own", "register a codec"),
        (Box([{"a": (1, Own(1))}]), ".content[0]['a'][1]", "test_values_refusals.Own", ""),
        (Point(1, Own(1)), ".y", "test_values_refusals.Own", ""),
        (Frozen(content=Own(1)), ".content", "test_values_refusals.Own", ""),
        (collections.deque([1, Own(1)], 5), "[1]", "test_values_refusals.Own", ""),
        (collections.OrderedDict(a=Own(1)), "['a']", "test_values_refusals.Own", ""),
        (collections.defaultdict(list, a=Own(1)), "['a']", "test_values_refusals.Own", ""),
        ({(1, 2): Own(1)}, "[(1, 2)]", "test_values_refusals.Own", ""),
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
        (cycle(), "['x'][0]['a'][0].content", "list", "it contains itself"),
        (threading.Lock(), "", "_thread.lock", "return an id"),
        (io.BytesIO(), "", "_io.BytesIO", "return an id"),
        (list[int], "", "types.GenericAlias", ""),
        (..., "", "ellipsis", ""),
        ({}.keys(), "", "dict_keys", ""),
        (types.MappingProxyType({}), "", "mappingproxy", ""),
        (attributed(), "", "collections.OrderedDict", "attributes of its own"),
        (
            datetime.datetime(2024, 1, 1, tzinfo=Zone()),
            "",
            "datetime.datetime",
            "zoneinfo.ZoneInfo",
        ),
        ({"d": collections.defaultdict(lambda: 1)}, "['d']", "function", ""),
        (enum.Enum("Made", "A").A, "", "test_values_refusals.Made", "no Made in module"),  # type: ignore[attr-defined]
    ],
    ids=lambda value: type(value).__name__,
)
def test_refusals(value: object, path: str | None, type_name: str, words: str) -> None:
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
    assert str(error).startswith(f"{error.path} cannot be recorded: it is a {type_name}, and ")
    assert words in str(error)
    assert "; " in str(error)


def test_a_zone_from_a_file_is_refused() -> None:
    keyless = zoneinfo.ZoneInfo.from_file(io.BytesIO(_tzif()))
    with pytest.raises(EncodeError, match="read from a file"):
        encode(datetime.datetime(2024, 1, 1, tzinfo=keyless))


def _tzif() -> bytes:
    """The smallest file of a time zone: UTC, for ever."""
    head = b"TZif" + b"\0" * 16 + b"".join(n.to_bytes(4, "big") for n in (0, 0, 0, 0, 1, 4))
    return head + b"\0" * 6 + b"UTC\0"


def test_a_coroutine_is_refused() -> None:
    made = coroutine()
    with pytest.raises(EncodeError, match="await it first"):
        encode(made)
    made.close()
    with pytest.raises(EncodeError, match="no codec"):
        encode(asyncio.Lock())


WRAPS: list[Callable[[Any], Any]] = [
    lambda x: [x],
    lambda x: {"a": x},
    lambda x: {1: x},
    lambda x: (x,),
    lambda x: {(): x},
    Box,
    lambda x: frozenset([x]),
    lambda x: [(Box({2: x}),)],
]


@pytest.mark.parametrize("wrap", WRAPS)
def test_what_is_nested_too_deeply_is_refused(wrap: Callable[[Any], Any]) -> None:
    # far beyond every limit, and around each of them: never a crash, never bytes that cannot be read
    for levels in [*range(20, 40), *range(95, 105), *range(250, 260), 2_000, 100_000]:
        value = nested(wrap, levels)
        try:
            data = encode(value)
        except EncodeError as error:
            assert "nested too deeply" in str(error)
            assert levels > 30
            continue
        assert levels < 260
        back = decode(data)
        assert type(back) is type(value)
        assert encode(back) == data


@pytest.mark.parametrize(("wrap", "limit"), [(lambda x: (x,), 100), (Box, 100), (lambda x: [x], 255)])
def test_the_deepest_values_are_read_wherever_the_program_is(wrap: Callable[[Any], Any], limit: int) -> None:
    def deep(frames: int, data: bytes) -> Any:
        return deep(frames - 1, data) if frames else decode(data)

    data = encode(nested(wrap, limit))
    assert encode(deep(500, data)) == data
    with pytest.raises(EncodeError, match="nested too deeply"):
        encode(nested(wrap, limit + 1))


def test_errors_of_ones_own_code_are_told() -> None:
    class Bad:
        pass

    def fail(_: object) -> object:
        raise LookupError("no luck")

    register(Bad, encode=fail, decode=fail, name="refusals.Bad")
    with pytest.raises(EncodeError, match=r"value\[0\].*LookupError: no luck") as caught:
        encode([Bad()])
    assert isinstance(caught.value.__cause__, LookupError)
    registry.register(Bad, aliases=["refusals.Worse"])
    codec.own_codecs[Bad] = (lambda _: 1, fail)
    registry.codec_by_class[Bad] = registry._registered_codec(Bad, lambda _: 1)  # type: ignore[attr-defined]
    with pytest.raises(DecodeError, match="LookupError: no luck"):
        decode(encode([Bad()]))


@pytest.mark.parametrize(
    ("data", "words"),
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
def test_bytes_that_are_no_value_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(DecodeError, match=words) as caught:
        decode(data)
    assert caught.value.code == "SF-0031"
    assert isinstance(caught.value, ValueError)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """Forgets what a test registered."""
    places: list[dict[Any, Any]] = [
        codec.own_codecs,
        registry.codec_by_class,
        references.class_of_name,
        references.name_of_class,
    ]
    before = [dict(place) for place in places]
    yield
    for place, held in zip(places, before, strict=True):
        place.clear()
        place.update(held)


def register_own(**names: Any) -> None:
    register(Own, encode=lambda own: [own.x], decode=lambda parts: Own(*parts), **names)


def test_a_registered_class_comes_back() -> None:
    register_own()
    value = Own({"a": (1, Own(2))})
    assert decode(encode([value])) == [value]
    assert encode([value], path="x") == encode([value])
    with pytest.raises(EncodeError) as caught:
        encode(Own(object()), path="r")
    assert caught.value.type_name == "object"


def test_a_subclass_of_a_registered_class_is_refused() -> None:
    register_own()
    with pytest.raises(EncodeError, match="come back as a test_values_refusals.Own"):
        encode(OwnChild(1))


def test_a_subclass_of_text_may_be_registered() -> None:
    register(UserId, encode=str, decode=UserId)
    back = decode(encode({"id": UserId("x"), UserId("k"): 1}))
    assert type(back["id"]) is UserId
    assert [type(key) for key in back] == [str, UserId]


def test_register_is_a_decorator() -> None:
    @register
    class Bare:
        pass

    @register(name="shop.item")
    class Item(enum.Enum):
        A = 1

    assert isinstance(Bare, type)
    assert decode(encode(Item.A)) is Item.A
    assert b"shop.item" in encode(Item.A)


def test_names_outlive_classes() -> None:
    data = encode(Colour.RED)
    with pytest.raises(DecodeError, match="no class Gone.*keep the old name|Keep the old name"):
        decode(data.replace(b"Colour", b"Colou_"))
    register(Colour, aliases=["test_values:Colou_"])
    assert decode(data.replace(b"Colour", b"Colou_")) is Colour.RED
    assert decode(encode(Colour.RED)) is Colour.RED


def test_a_name_that_nobody_registered_is_told() -> None:
    register_own(name="own")
    data = encode(Own(1))
    del references.class_of_name["own"]
    with pytest.raises(DecodeError, match="no class is registered as 'own'"):
        decode(data)


def test_a_codec_that_nobody_registered_is_told() -> None:
    register_own()
    data = encode(Own(1))
    del codec.own_codecs[Own]
    with pytest.raises(DecodeError, match="no codec is registered for test_values_refusals.Own"):
        decode(data)


def test_collisions_are_refused() -> None:
    register_own(name="own")
    with pytest.raises(ValueError, match="has a codec already"):
        register_own()
    with pytest.raises(ValueError, match="is registered as 'own' already"):
        register(Own, name="other")
    with pytest.raises(ValueError, match="the name 'own' is taken by test_values_refusals.Own"):
        register(OwnChild, encode=vars, decode=OwnChild, name="own")
    with pytest.raises(ValueError, match="is taken"):
        register(OwnChild, aliases=["own"])
    with pytest.raises(ValueError, match="the name '' "):
        register(OwnChild, aliases=[""])
    for cls in (int, dict, tuple, decimal.Decimal, re.Pattern):
        with pytest.raises(ValueError, match="cannot be replaced"):
            register(cls, name="x")
    with pytest.raises(TypeError, match="both encode and decode"):
        register(OwnChild, encode=vars)
