"""Objects with fields as recorded values, for each library of such classes, and changes of their classes."""

import dataclasses
import decimal
import functools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Generic, NamedTuple, Self, TypeVar

import attrs
import msgspec
import pydantic
import pytest

from stepfast.values import DecodeError, EncodeError, decode, encode

T = TypeVar("T")


@dataclasses.dataclass
class Plain:
    name: str
    tags: list[str] = dataclasses.field(default_factory=list)
    version: int = dataclasses.field(default=0, init=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Money:
    amount: decimal.Decimal
    currency: str = "EUR"


@dataclasses.dataclass
class DigestData:
    """A class whose constructor drops its argument."""

    secret: dataclasses.InitVar[str]
    digest: str = dataclasses.field(init=False)
    calls: int = 0

    def __post_init__(self, secret: str) -> None:
        self.digest = secret[::-1]
        self.calls += 1
        self.extra = [self.calls]

    @functools.cached_property
    def cached_lock(self) -> object:
        return threading.Lock()


@dataclasses.dataclass
class GenericData(Generic[T]):
    item: T


@dataclasses.dataclass
class PlainChild(Plain):
    more: Any = None


class UndecoratedChild(PlainChild):
    pass


@dataclasses.dataclass
class SlottedData:
    __slots__ = ("_private", "public")
    public: int


@dataclasses.dataclass
class CustomNew:
    x: int

    def __new__(cls, x: int) -> Self:
        return super().__new__(cls)


@dataclasses.dataclass(slots=True)
class UnsetData:
    number: int
    missing_field: int = dataclasses.field(init=False)

    def __getattr__(self, name: str) -> Any:
        raise LookupError(f"attribute {name} was read")


@attrs.define
class Attrs:
    a: int
    _b: list[int] = attrs.Factory(list)
    c: Any = attrs.field(default=attrs.Factory(lambda self: self.a + 1, takes_self=True))


@attrs.frozen(cache_hash=True)
class FrozenAttrs:
    a: str = attrs.field(converter=str.upper, validator=attrs.validators.instance_of(str))


@attrs.define(slots=False)
class DictAttrs:
    a: int


class Struct(msgspec.Struct):
    a: int
    b: list[int] = []


class FrozenStruct(msgspec.Struct, frozen=True, kw_only=True, tag="t", rename="camel"):
    long_name: int
    other: Any = None


class PostStruct(msgspec.Struct, dict=True):
    a: int

    def __post_init__(self) -> None:
        self.a += 1


class Model(pydantic.BaseModel):
    a: int = 1
    b: "Model | None" = None
    c: list[int] = pydantic.Field(default_factory=list, alias="sea")
    url: pydantic.HttpUrl | None = None
    _private: int = pydantic.PrivateAttr(5)


class OpenModel(pydantic.BaseModel, extra="allow", frozen=True):
    a: int

    @functools.cached_property
    def twice(self) -> int:
        return self.a * 2


class Root(pydantic.RootModel[list[int]]):
    pass


class Box(pydantic.BaseModel, Generic[T]):
    item: T


class IntBox(Box[int]):
    pass


@pydantic.dataclasses.dataclass
class PydanticData:
    a: int


class Pair(NamedTuple):
    left: Any
    right: Any = None


class PairChild(Pair):
    def both(self) -> tuple[Any, Any]:
        return self.left, self.right


def state_of(value: Any) -> Any:
    """Returns the attributes and the slots of an object."""
    names = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    slots = {name: getattr(value, name) for name in names if hasattr(value, name)}
    slots.pop("__weakref__", None)
    slots.pop("_attrs_cached_hash", None)
    return getattr(value, "__dict__", {}), {k: v for k, v in slots.items() if k != "__dict__"}


@pytest.mark.parametrize(
    "value",
    [
        Plain("a", ["b"]),
        Money(amount=decimal.Decimal("1.50")),
        [Money(amount=decimal.Decimal(1)), {"x": Money(amount=decimal.Decimal("-0"))}],
        DigestData("abc"),
        GenericData[int](5),
        PlainChild("c", more=(1, Plain("d"))),
        UndecoratedChild("u"),
        Attrs(1, [2]),
        FrozenAttrs("x"),
        DictAttrs(1),
        Struct(1),
        FrozenStruct(long_name=1, other=(1,)),
        PostStruct(1),
        Model(a=2, b=Model(sea=[1]), url="https://example.org/x?y"),  # type: ignore[arg-type]
        Model.model_construct(a="not checked"),
        OpenModel(a=1, more={"x": (1,)}),  # type: ignore[call-arg]
        Root([1, 2]),
        IntBox(item=1),
        Box[int](item=1),
        PydanticData(1),
        Pair(1),
        PairChild(1, (2,)),
    ],
    ids=repr,
)
def test_object_survives_round_trip(value: Any) -> None:
    decoded = decode(encode(value))
    assert type(decoded) is type(value)
    assert decoded == value
    if not isinstance(value, list):
        expected, actual = state_of(value), state_of(decoded)
        expected[0].pop("__orig_class__", None)
        if isinstance(value, Plain):
            expected[0].setdefault("version", 0)  # the default is an attribute of the class
        assert actual == expected
    assert encode(decoded) == encode(value)


def test_decoding_calls_no_constructor() -> None:
    decoded = decode(encode(DigestData("abc")))
    assert (decoded.digest, decoded.calls, decoded.extra) == ("cba", 1, [1])
    assert decode(encode(PostStruct(1))).a == 2


def test_cached_property_is_not_recorded() -> None:
    value = DigestData("abc")
    assert value.cached_lock
    assert "cached_lock" not in vars(decode(encode(value)))
    model = OpenModel(a=2)
    assert model.twice == 4
    assert vars(decode(encode(model))) == {"a": 2}


def test_unset_fields_and_slots_stay_unset() -> None:
    value = Plain("x")
    del value.tags
    assert not hasattr(decode(encode(value)), "tags")
    slotted = SlottedData(1)
    assert not hasattr(decode(encode(slotted)), "_private")
    slotted._private = (1,)
    assert decode(encode(slotted))._private == (1,)


def test_encoding_bypasses_getattr_of_class() -> None:
    decoded = decode(encode(UnsetData(1)))
    assert decoded.number == 1
    with pytest.raises(LookupError):
        _ = decoded.missing_field


def test_url_unlike_its_text_is_refused() -> None:
    url = pydantic.TypeAdapter(
        Annotated[pydantic.HttpUrl, pydantic.UrlConstraints(preserve_empty_path=True)]
    ).validate_python("https://example.org")
    assert_refused([url], "result[0]", "its text makes another URL")


def test_decoded_object_keeps_its_behaviour() -> None:
    frozen = decode(encode(Money(amount=decimal.Decimal(1))))
    with pytest.raises(dataclasses.FrozenInstanceError):
        frozen.currency = "USD"
    assert hash(decode(encode(FrozenAttrs("x")))) == hash(FrozenAttrs("x"))
    model = decode(encode(Model(a=2)))
    assert model.model_fields_set == {"a"}
    assert model._private == 5
    assert model.model_dump_json() == Model(a=2).model_dump_json()
    assert decode(encode(OpenModel(a=1, b=2))).model_extra == {"b": 2}  # type: ignore[call-arg]


def test_private_attribute_of_pydantic_is_recorded() -> None:
    model = Model()
    model._private = 9
    assert decode(encode(model))._private == 9


def assert_refused(value: object, path: str, *messages: str) -> None:
    """Asserts that a value is refused with this path and with all of these messages."""
    with pytest.raises(EncodeError) as caught:
        encode(value, path="result")
    assert caught.value.path == path
    for message in messages:
        assert message in str(caught.value)


def test_unrecordable_object_is_refused() -> None:
    assert_refused(CustomNew(1), "result", "makes its instances itself, in __new__")
    assert_refused(Box[str](item="a"), "result", "Box[str]", "its own name")
    value = Plain("x")
    value.lock = threading.Lock()  # type: ignore[attr-defined]
    assert_refused([value], "result[0].lock", "lock", "register a codec")
    assert_refused(OpenModel(a=1, b=object()), "result.b", "object")  # type: ignore[call-arg]

    class Local(NamedTuple):
        x: int

    assert_refused(Local(1), "result", "defined inside a function", "top level of a module")
    assert_refused({"a": pydantic.SecretStr("x")}, "result['a']", "pydantic.types.SecretStr")


@pytest.fixture
def replace_class() -> Iterator[Callable[[str, Any], None]]:
    """A function that binds a name of this module to another class, as a deploy of new code does."""
    module = sys.modules[__name__]
    original_classes = {}

    def replace(name: str, cls: Any) -> None:
        original_classes.setdefault(name, getattr(module, name))
        cls.__qualname__ = cls.__name__ = name
        setattr(module, name, cls)

    yield replace
    for name, cls in original_classes.items():
        setattr(module, name, cls)


ReplaceClass = Callable[[str, Any], None]


@dataclasses.dataclass
class WiderPlain:
    name: str
    tags: list[str]
    version: int
    extra: list[int] = dataclasses.field(default_factory=lambda: [7])
    other: int = 8


@attrs.define
class WiderAttrs:
    a: int
    _b: list[int]
    c: int
    d: Any = attrs.field(default=attrs.Factory(lambda self: self.a * 10, takes_self=True))
    e: list[int] = attrs.Factory(list)


class WiderStruct(msgspec.Struct):
    a: int
    b: list[int]
    c: int = 3


class WiderModel(pydantic.BaseModel):
    a: int
    b: Any
    c: list[int]
    url: Any
    d: int = 4
    e: list[int] = pydantic.Field(default_factory=list)
    f: int = pydantic.Field(default_factory=lambda data: data["a"] + 1)
    _private: int = pydantic.PrivateAttr()
    _with_default: int = pydantic.PrivateAttr(6)
    _without_default: int = pydantic.PrivateAttr()


class WiderPair(NamedTuple):
    left: Any
    right: Any
    third: int = 3


@pytest.mark.parametrize(
    ("old", "new", "added"),
    [
        (Plain("x"), WiderPlain, {"extra": [7], "other": 8}),
        (Attrs(2), WiderAttrs, {"d": 20, "e": []}),
        (Struct(1), WiderStruct, {"c": 3}),
        (Model(a=1), WiderModel, {"d": 4, "e": [], "f": 2, "_with_default": 6, "_private": 5}),
        (Pair(1), WiderPair, {"third": 3}),
    ],
    ids=["dataclass", "attrs", "msgspec", "pydantic", "namedtuple"],
)
def test_added_field_gets_its_default(
    replace_class: ReplaceClass, old: Any, new: type, added: dict[str, Any]
) -> None:
    data = encode(old)
    replace_class(type(old).__name__, new)
    decoded = decode(data)
    assert type(decoded) is new
    assert {name: getattr(decoded, name) for name in added} == added
    assert not hasattr(decoded, "_without_default")
    if new is WiderModel:
        assert decoded.model_fields_set == {"a"}


@dataclasses.dataclass
class Strict:
    name: str
    tags: list[str]
    version: int
    needed: int


@pytest.mark.parametrize("kind", ["dataclass", "msgspec", "pydantic", "namedtuple", "attrs"])
def test_added_field_without_default_is_reported(replace_class: ReplaceClass, kind: str) -> None:
    data = encode(Plain("x"))
    names = ["name", "tags", "version", "needed"]
    new: Any = {
        "dataclass": lambda: dataclasses.make_dataclass("New", names),
        "msgspec": lambda: msgspec.defstruct("New", names),
        "pydantic": lambda: pydantic.create_model("New", **dict.fromkeys(names, (Any, ...))),
        "namedtuple": lambda: NamedTuple("New", [(name, Any) for name in names]),
        "attrs": lambda: attrs.make_class("New", names),
    }[kind]()
    replace_class("Plain", new)
    with pytest.raises(DecodeError, match="without the field needed, which has no default"):
        decode(data)


def test_class_changes_to_another_library(replace_class: ReplaceClass) -> None:
    data = encode(Plain("x", ["t"]))
    replace_class("Plain", pydantic.create_model("New", name=(str, ...), tags=(Any, ...), version=(int, ...)))
    decoded = decode(data)
    assert isinstance(decoded, pydantic.BaseModel)
    assert decoded.model_dump() == {"name": "x", "tags": ["t"], "version": 0}


def test_removed_field_needs_upgrade_method(replace_class: ReplaceClass) -> None:
    data = encode(Money(amount=decimal.Decimal("1.50")))

    @dataclasses.dataclass
    class Cents:
        cents: int = 0

    replace_class("Money", Cents)
    with pytest.raises(DecodeError, match="with the field amount.*__stepfast_upgrade__"):
        decode(data)

    @dataclasses.dataclass
    class Upgraded:
        cents: int = 0

        @classmethod
        def __stepfast_upgrade__(cls, fields: dict[str, Any]) -> dict[str, Any]:
            if "amount" in fields:
                return {"cents": int(fields["amount"] * 100)}
            return fields

    replace_class("Money", Upgraded)
    assert decode(data) == Upgraded(150)
    assert decode(encode(Upgraded(7))) == Upgraded(7)


def test_class_without_fields_is_reported(replace_class: ReplaceClass) -> None:
    data = encode(Plain("x"))
    replace_class("Plain", type("Plain", (), {}))
    with pytest.raises(DecodeError, match="has no fields any more"):
        decode(data)


def test_optional_libraries_are_not_imported() -> None:
    source = (
        "import sys, dataclasses, datetime; from stepfast.values import *\n"
        "try: encode(object())\n"
        "except EncodeError: pass\n"
        "decode(encode((1, datetime.date(2024, 1, 1), ValueError(3))))\n"
        "print([name for name in ('numpy', 'pydantic', 'attr', 'msgspec') if name in sys.modules])"
    )
    program = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True, timeout=60
    )
    assert program.stdout == "[]\n"
