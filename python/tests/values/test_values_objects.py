"""Objects made of fields, of every library that makes such classes, and how classes change."""

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
    made: int = dataclasses.field(default=0, init=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Money:
    amount: decimal.Decimal
    currency: str = "EUR"


@dataclasses.dataclass
class Hashed:
    """Its constructor does not keep what it is given."""

    secret: dataclasses.InitVar[str]
    digest: str = dataclasses.field(init=False)
    calls: int = 0

    def __post_init__(self, secret: str) -> None:
        self.digest = secret[::-1]
        self.calls += 1
        self.beside = [self.calls]

    @functools.cached_property
    def costly(self) -> object:
        return threading.Lock()


@dataclasses.dataclass
class Generic1(Generic[T]):
    item: T


@dataclasses.dataclass
class Child(Plain):
    more: Any = None


class Undecorated(Child):
    pass


@dataclasses.dataclass
class Slotted:
    __slots__ = ("_hidden", "shown")
    shown: int


@dataclasses.dataclass
class OwnNew:
    x: int

    def __new__(cls, x: int) -> Self:
        return super().__new__(cls)


@dataclasses.dataclass(slots=True)
class Computing:
    given: int
    unset: int = dataclasses.field(init=False)

    def __getattr__(self, name: str) -> Any:
        raise LookupError(f"nobody may ask for {name}")


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


class Open(pydantic.BaseModel, extra="allow", frozen=True):
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
class Checked:
    a: int


class Pair(NamedTuple):
    left: Any
    right: Any = None


class NamedPair(Pair):
    def both(self) -> tuple[Any, Any]:
        return self.left, self.right


def state_of(value: Any) -> Any:
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
        Hashed("abc"),
        Generic1[int](5),
        Child("c", more=(1, Plain("d"))),
        Undecorated("u"),
        Attrs(1, [2]),
        FrozenAttrs("x"),
        DictAttrs(1),
        Struct(1),
        FrozenStruct(long_name=1, other=(1,)),
        PostStruct(1),
        Model(a=2, b=Model(sea=[1]), url="https://example.org/x?y"),  # type: ignore[arg-type]
        Model.model_construct(a="not checked"),
        Open(a=1, more={"x": (1,)}),  # type: ignore[call-arg]
        Root([1, 2]),
        IntBox(item=1),
        Box[int](item=1),
        Checked(1),
        Pair(1),
        NamedPair(1, (2,)),
    ],
    ids=repr,
)
def test_objects_come_back(value: Any) -> None:
    back = decode(encode(value))
    assert type(back) is type(value)
    assert back == value
    if not isinstance(value, list):
        mine, its = state_of(value), state_of(back)
        mine[0].pop("__orig_class__", None)
        if isinstance(value, Plain):
            mine[0].setdefault("made", 0)  # was on the class alone
        assert its == mine
    assert encode(back) == encode(value)


def test_constructors_are_not_called_again() -> None:
    back = decode(encode(Hashed("abc")))
    assert (back.digest, back.calls, back.beside) == ("cba", 1, [1])
    assert decode(encode(PostStruct(1))).a == 2


def test_cached_properties_are_computed_again() -> None:
    value = Hashed("abc")
    assert value.costly
    assert "costly" not in vars(decode(encode(value)))
    opened = Open(a=2)
    assert opened.twice == 4
    assert vars(decode(encode(opened))) == {"a": 2}


def test_fields_and_slots_without_a_value_have_none_afterwards() -> None:
    value = Plain("x")
    del value.tags
    assert not hasattr(decode(encode(value)), "tags")
    slotted = Slotted(1)
    assert not hasattr(decode(encode(slotted)), "_hidden")
    slotted._hidden = (1,)
    assert decode(encode(slotted))._hidden == (1,)


def test_nothing_is_computed() -> None:
    back = decode(encode(Computing(1)))
    assert back.given == 1
    with pytest.raises(LookupError):
        _ = back.unset


def test_a_url_that_is_not_its_text_is_refused() -> None:
    kept = pydantic.TypeAdapter(
        Annotated[pydantic.HttpUrl, pydantic.UrlConstraints(preserve_empty_path=True)]
    ).validate_python("https://example.org")
    refuse([kept], "result[0]", "its text makes another URL")


def test_objects_are_usable_as_before() -> None:
    frozen = decode(encode(Money(amount=decimal.Decimal(1))))
    with pytest.raises(dataclasses.FrozenInstanceError):
        frozen.currency = "USD"
    assert hash(decode(encode(FrozenAttrs("x")))) == hash(FrozenAttrs("x"))
    model = decode(encode(Model(a=2)))
    assert model.model_fields_set == {"a"}
    assert model._private == 5
    assert model.model_dump_json() == Model(a=2).model_dump_json()
    assert decode(encode(Open(a=1, b=2))).model_extra == {"b": 2}  # type: ignore[call-arg]


def test_pydantics_private_attributes_are_kept() -> None:
    model = Model()
    model._private = 9
    assert decode(encode(model))._private == 9


def refuse(value: object, path: str, *parts: str) -> None:
    with pytest.raises(EncodeError) as caught:
        encode(value, path="result")
    assert caught.value.path == path
    for part in parts:
        assert part in str(caught.value)


def test_what_cannot_come_back_is_refused() -> None:
    refuse(OwnNew(1), "result", "makes its instances itself, in __new__")
    refuse(Box[str](item="a"), "result", "Box[str]", "name of its own")
    value = Plain("x")
    value.lock = threading.Lock()  # type: ignore[attr-defined]
    refuse([value], "result[0].lock", "lock", "register a codec")
    refuse(Open(a=1, b=object()), "result.b", "object")  # type: ignore[call-arg]

    class Local(NamedTuple):
        x: int

    refuse(Local(1), "result", "defined inside a function", "top level of a module")
    refuse({"a": pydantic.SecretStr("x")}, "result['a']", "pydantic.types.SecretStr")


@pytest.fixture
def become() -> Iterator[Callable[[str, Any], None]]:
    """Makes a name of this module another class, as a new version of the code would."""
    module = sys.modules[__name__]
    before = {}

    def change(name: str, cls: Any) -> None:
        before.setdefault(name, getattr(module, name))
        cls.__qualname__ = cls.__name__ = name
        setattr(module, name, cls)

    yield change
    for name, cls in before.items():
        setattr(module, name, cls)


Become = Callable[[str, Any], None]


@dataclasses.dataclass
class WiderPlain:
    name: str
    tags: list[str]
    made: int
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
    _later: int = pydantic.PrivateAttr(6)
    _never: int = pydantic.PrivateAttr()


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
        (Model(a=1), WiderModel, {"d": 4, "e": [], "f": 2, "_later": 6, "_private": 5}),
        (Pair(1), WiderPair, {"third": 3}),
    ],
    ids=["dataclass", "attrs", "msgspec", "pydantic", "namedtuple"],
)
def test_an_added_field_gets_its_default(become: Become, old: Any, new: type, added: dict[str, Any]) -> None:
    data = encode(old)
    become(type(old).__name__, new)
    back = decode(data)
    assert type(back) is new
    assert {name: getattr(back, name) for name in added} == added
    assert not hasattr(back, "_never")
    if new is WiderModel:
        assert back.model_fields_set == {"a"}


@dataclasses.dataclass
class Strict:
    name: str
    tags: list[str]
    made: int
    needed: int


@pytest.mark.parametrize("kind", ["dataclass", "msgspec", "pydantic", "namedtuple", "attrs"])
def test_an_added_field_without_default_is_an_error(become: Become, kind: str) -> None:
    data = encode(Plain("x"))
    names = ["name", "tags", "made", "needed"]
    new: Any = {
        "dataclass": lambda: dataclasses.make_dataclass("New", names),
        "msgspec": lambda: msgspec.defstruct("New", names),
        "pydantic": lambda: pydantic.create_model("New", **dict.fromkeys(names, (Any, ...))),
        "namedtuple": lambda: NamedTuple("New", [(name, Any) for name in names]),
        "attrs": lambda: attrs.make_class("New", names),
    }[kind]()
    become("Plain", new)
    with pytest.raises(DecodeError, match="without the field needed, which has no default"):
        decode(data)


def test_a_class_may_change_to_another_library(become: Become) -> None:
    data = encode(Plain("x", ["t"]))
    become("Plain", pydantic.create_model("New", name=(str, ...), tags=(Any, ...), made=(int, ...)))
    back = decode(data)
    assert isinstance(back, pydantic.BaseModel)
    assert back.model_dump() == {"name": "x", "tags": ["t"], "made": 0}


def test_a_removed_field_is_an_error_until_the_class_says_what_becomes_of_it(
    become: Become,
) -> None:
    data = encode(Money(amount=decimal.Decimal("1.50")))

    @dataclasses.dataclass
    class Cents:
        cents: int = 0

    become("Money", Cents)
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

    become("Money", Upgraded)
    assert decode(data) == Upgraded(150)
    assert decode(encode(Upgraded(7))) == Upgraded(7)


def test_a_class_without_fields_is_an_error(become: Become) -> None:
    data = encode(Plain("x"))
    become("Plain", type("Plain", (), {}))
    with pytest.raises(DecodeError, match="has no fields any more"):
        decode(data)


def test_optional_libraries_are_not_imported() -> None:
    program = (
        "import sys, dataclasses, datetime; from stepfast.values import *\n"
        "try: encode(object())\n"
        "except EncodeError: pass\n"
        "decode(encode((1, datetime.date(2024, 1, 1), ValueError(3))))\n"
        "print([name for name in ('numpy', 'pydantic', 'attr', 'msgspec') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"
