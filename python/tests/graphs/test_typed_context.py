"""The context of graphs with a class: its fields are the keys, and writes are checked."""

import asyncio
import dataclasses
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Literal, NewType, Optional, Protocol, TypedDict, Union

import attrs
import msgspec
import pydantic
import pytest
from graphs import forget

from stepfast import AsyncEngine, Context, Engine, Graph, InvalidArgument

UserId = NewType("UserId", int)


@dataclasses.dataclass
class Stats:
    name: str
    count: int = 0
    ratio: float = 0.0
    words: list[str] = dataclasses.field(default_factory=list)


@attrs.define
class AttrsStats:
    name: str
    count: int = 0
    words: list[str] = attrs.Factory(list)
    label: str = attrs.field()

    @label.default
    def _(self) -> str:
        return f"{self.name} {self.count}"


class Model(pydantic.BaseModel):
    name: str
    count: int = pydantic.Field(default=0, ge=0)
    words: list[str] = []
    label: str = pydantic.Field(default_factory=lambda data: f"{data['name']}!")

    @pydantic.field_validator("words")
    @classmethod
    def check_words(cls, words: list[str], info: pydantic.ValidationInfo) -> list[str]:
        if info.data.get("name") in words:
            raise ValueError("the name is no word")
        return words

    @pydantic.model_validator(mode="after")
    def check_all(self) -> "Model":
        raise AssertionError("no model is complete")


class Frozen(pydantic.BaseModel, frozen=True):
    count: int = pydantic.Field(default=0, frozen=True)
    parts: "list[Frozen]" = []


class Later(pydantic.BaseModel, defer_build=True):
    parts: "list[Part]" = []


class Part(pydantic.BaseModel, strict=True):
    count: int


class Root(pydantic.RootModel[int]): ...


class Struct(msgspec.Struct):
    name: str
    count: int = 0
    words: list[str] = []


class Items(TypedDict, total=False):
    name: str
    count: int
    words: list[str]


class Named(Protocol):
    name: str


@dataclasses.dataclass
class Types:
    number: int
    real: float
    truth: bool
    texts: list[str]
    by_name: dict[str, int]
    pair: tuple[int, str]
    optional: Optional[int]  # noqa: UP045
    either: Union[int, list[str]]  # noqa: UP007
    bar: int | str | None
    word: Literal["a", "b"]
    user: UserId
    items: Items
    any: Any
    protocol: Named
    call: Callable[[], int]
    unknown: "NotDefined"  # type: ignore[name-defined] # noqa: F821


CLASSES = [Stats, AttrsStats, Model, Struct]


def run_sync(graph: Graph, url: str = "memory:", **inputs: Any) -> Any:
    with Engine(url) as engine:
        return engine.run(graph, **inputs)


def test_fields_are_keys_of_the_context(url: str) -> None:
    graph = Graph("typed_sync")

    @graph.task
    def read(context: Context[Stats], text: str) -> None:
        context.fields.name = "a"
        context.fields.words = text.split()

    @graph.task(after=read)
    def count(context: "Context[Stats]") -> None:
        context.fields.count += len(context.fields.words)

    # another spelling of the same keys
    @graph.task(after=count)
    def divide(context: Context) -> None:
        context["ratio"] = context["count"] / 2
        del context.fields.words

    with Engine(url) as engine:
        handle = engine.start(graph.options(workflow_id="typed"), text="to be or")
        assert handle.result() == {"name": "a", "count": 3, "ratio": 1.5}
        values = {each.name: each.value for each in engine.show("typed").checkpoints}
        # a default is read, but not recorded
        assert values["count"] == {"value": None, "set": {"count": 3}, "removed": []}
    assert graph(text="to be")["count"] == 2


@pytest.mark.parametrize("is_async", [False, True])
def test_resume_restores_typed_context(url: str, is_async: bool) -> None:
    graph = Graph(f"typed_resume_{is_async}")
    is_ready: list[bool] = []

    def first(context: Context[Model]) -> None:
        assert not is_ready, "recorded once"
        context["count"] = "7"
        context.fields.name = "a"

    async def first_async(context: Context[Model]) -> None:
        first(context)

    body: Any = first_async if is_async else first
    graph.task(name="first")(body)

    @graph.task(after="first")
    def second(context: Context[Model]) -> None:
        if not is_ready:
            raise ValueError("not ready")
        context.fields.words = [context.fields.label] * context.fields.count

    async def main() -> Any:
        async with AsyncEngine(url) as engine:
            handle = await engine.start(graph, context={"name": "b"})
            with pytest.raises(ValueError, match="not ready"):
                await handle.result()
            is_ready.append(True)
            await handle.resume()
            return await (await engine.get(handle.workflow_id)).result()

    def main_sync() -> Any:
        with Engine(url) as engine:
            handle = engine.start(graph, context={"name": "b"})
            with pytest.raises(ValueError, match="not ready"):
                handle.result()
            is_ready.append(True)
            handle.resume()
            return engine.get(handle.workflow_id).result()

    output = asyncio.run(main()) if is_async else main_sync()
    assert output == {"name": "a", "count": 7, "words": ["a!"] * 7}


@pytest.mark.parametrize("cls", CLASSES)
def test_defaults_are_visible_until_a_write(cls: Any) -> None:
    context: Context[Any] = Context[cls]({"name": "a"})
    fields = context.fields
    assert (fields.name, fields.count, fields.words) == ("a", 0, [])
    assert (len(context), "count" in context, context.get("count")) == (1, False, None)
    fields.count = 2
    assert (fields.count, context["count"]) == (2, 2)
    context["count"] = 3
    assert fields.count == 3
    del fields.count
    assert fields.count == 0 and context.changes() == {"set": {}, "removed": ["count"]}
    del fields.name
    with pytest.raises(
        AttributeError, match=f"no key 'name', and the field {cls.__name__}.name has no default"
    ):
        _ = fields.name
    assert not hasattr(fields, "model_dump") and "count" in dir(fields)
    assert repr(fields) == "<fields of Context({})>"


def test_default_depends_on_other_fields() -> None:
    assert Context[AttrsStats]({"name": "a", "count": 2}).fields.label == "a 2"
    assert Context[AttrsStats]({"name": "a"}).fields.label == "a 0"
    assert Context[Model]({"name": "a"}).fields.label == "a!"
    # a default that needs a missing key
    with pytest.raises(AttributeError, match="no key 'name', and the field AttrsStats.name has no default"):
        _ = Context[AttrsStats]().fields.label


def test_fields_of_typed_dict_are_items() -> None:
    context = Context[Items]({"name": "a"})
    fields = context.fields
    fields["count"] = 3
    fields.update({"words": ["b"]})
    assert context.to_dict() == {"name": "a", "count": 3, "words": ["b"]}
    assert (fields["name"], fields.get("count"), len(fields), list(fields)) == (
        "a",
        3,
        3,
        ["name", "count", "words"],
    )
    del fields["name"]
    assert "name" not in fields and fields.get("name") is None and "other" not in fields
    with pytest.raises(KeyError, match="the context has no key 'name'"):
        _ = fields["name"]
    with pytest.raises(InvalidArgument, match="key 'cuont' is no field of Items; did you mean 'count'"):
        fields["cuont"] = 3  # type: ignore[typeddict-unknown-key]


@pytest.mark.parametrize("cls", [*CLASSES, Items])
def test_key_that_is_no_field_is_rejected(cls: Any) -> None:
    graph = Graph(f"typed_unknown_{cls.__name__}")

    @graph.task
    def load(context: Context[cls], key: str) -> None:
        context[key] = 3

    with pytest.raises(InvalidArgument) as raised:
        run_sync(graph, key="cuont")
    assert str(raised.value) == (
        f"the context key 'cuont' of task 'load' of graph 'typed_unknown_{cls.__name__}' is no field of "
        f"{cls.__name__}; did you mean 'count'?"
    )
    with pytest.raises(InvalidArgument, match=f"is no field of {cls.__name__}, whose fields are: '"):
        graph(key="zzz")


def test_every_access_checks_the_key() -> None:
    context = Context[Stats]({"name": "a"})
    message = "the context key 'cuont' is no field of Stats; did you mean 'count'"
    accesses: list[Callable[[], Any]] = [
        lambda: context.insert("cuont", 1),
        lambda: context.update("cuont", 1),
        lambda: context.set("cuont", 1),
        lambda: context.remove("cuont"),
        lambda: context.get("cuont"),
        lambda: context["cuont"],
        lambda: setattr(context.fields, "cuont", 1),
        lambda: delattr(context.fields, "cuont"),
        lambda: Context[Stats]({"cuont": 1}),
    ]
    for access in accesses:
        with pytest.raises(InvalidArgument, match=message):
            access()
    with pytest.raises(AttributeError, match="'cuont' is no field of Stats; did you mean 'count'"):
        _ = context.fields.cuont  # type: ignore[attr-defined]
    with pytest.raises(KeyError):
        context.update("count", 1)
    assert context.to_dict() == {"name": "a"} and context.changes() == {"set": {}, "removed": []}


@pytest.mark.parametrize(
    ("key", "accepted", "rejected"),
    [
        ("number", [3, True], [3.0, "3", None]),
        ("real", [3, 3.5, float("nan")], ["3", None]),
        ("truth", [True], [1, None]),
        ("texts", [[], ["a"], [1]], [("a",), "a", None]),
        ("by_name", [{}, {"a": 1}], [[], None]),
        ("pair", [(1, "a")], [[1, "a"]]),
        ("optional", [None, 1], ["a"]),
        ("either", [1, ["a"]], [None, "a"]),
        ("bar", [1, "a", None], [1.5]),
        ("word", ["a", "b"], ["c", 1, None]),
        ("user", [1], ["a"]),
        ("items", [{"name": "a"}], [[]]),
        ("any", [1, "a", None], []),
        ("protocol", [1, "a"], []),
        ("unknown", [1, "a"], []),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_value_needs_the_type_of_the_field(key: str, accepted: list[Any], rejected: list[Any]) -> None:
    # one name of the class cannot be evaluated, which concerns its field only
    context = Context[Types]()
    for value in accepted:
        context[key] = value
    for value in rejected:
        with pytest.raises(
            InvalidArgument, match=f"context key '{key}' is .*, and must be .* field Types.{key}"
        ):
            context[key] = value


@pytest.mark.parametrize("cls", [Stats, AttrsStats, Struct, Items])
def test_value_of_wrong_type_names_the_task(cls: Any) -> None:
    graph = Graph(f"typed_wrong_{cls.__name__}")

    @graph.task
    def load(context: Context[cls]) -> None:
        context["count"] = "3"

    with pytest.raises(InvalidArgument) as raised:
        run_sync(graph)
    assert str(raised.value) == (
        f"the context key 'count' of task 'load' of graph '{graph.name}' is '3', and must be int, like the "
        f"field {cls.__name__}.count"
    )


def test_pydantic_validates_values_by_field() -> None:
    context = Context[Model]({"name": "a", "count": "3"})
    assert context["count"] == 3
    context.fields.words = ["b"]
    with pytest.raises(
        InvalidArgument, match="'count' is -1, which the field Model.count rejects: Input should"
    ):
        context["count"] = -1
    with pytest.raises(InvalidArgument, match="'words' is .*rejects: Value error, the name is no word"):
        context.fields.words = ["a"]
    assert context.to_dict() == {"name": "a", "count": 3, "words": ["b"]}
    frozen = Context[Frozen]()
    frozen["count"] = "2"
    frozen["parts"] = [{"count": 1, "parts": [{"count": "4"}]}]
    assert frozen["count"] == 2 and frozen["parts"][0].parts[0] == Frozen(count=4)
    with pytest.raises(InvalidArgument, match="which the field Frozen.parts rejects: Input should"):
        frozen["parts"] = [{"count": "a"}]
    later = Context[Later]()
    later["parts"] = [{"count": 1}]
    assert later.fields.parts == [Part(count=1)]
    with pytest.raises(
        InvalidArgument, match=r"rejects: Input should be a valid integer at \[0\]\['count'\]"
    ):
        later["parts"] = [{"count": "1"}]


def test_input_is_checked() -> None:
    graph = Graph("typed_input")

    @graph.task
    def load(context: Context[Stats]) -> None: ...

    with Engine("memory:") as engine:
        assert engine.run(graph, context={"count": 3}) == {"count": 3}
        with pytest.raises(
            InvalidArgument,
            match="the context key 'cuont' of the input of graph 'typed_input' is no field of Stats; did you",
        ):
            engine.run(graph, context={"cuont": 3})
        with pytest.raises(
            InvalidArgument, match="'count' of the input of graph 'typed_input' is 'a', and must"
        ):
            engine.run(graph, context={"count": "a"})
        with pytest.raises(InvalidArgument, match="the context key 1 of the input .* is no field of Stats"):
            engine.run(graph, context={1: "a"})


def test_class_holds_for_tasks_that_name_none() -> None:
    graph = Graph("typed_mixed")

    @graph.task
    def plain(context: Context) -> None:
        context["cuont"] = 1

    @graph.task(after=plain)
    def typed(context: Context[Stats]) -> None: ...

    with pytest.raises(InvalidArgument, match="'cuont' of task 'plain' of graph 'typed_mixed' is no field"):
        run_sync(graph)


def test_merged_value_is_checked() -> None:
    graph = Graph("typed_merge", merge=lambda _, values: str(values))

    @graph.task
    def one(context: Context[Stats]) -> None:
        context.fields.count = 1

    @graph.task
    def two(context: Context[Stats]) -> None:
        context.fields.count = 2

    @graph.task(after=[one, two])
    def join(context: Context[Stats]) -> None: ...

    with pytest.raises(
        InvalidArgument, match="'count' of the merge of graph 'typed_merge' is '\\[1, 2\\]', and"
    ):
        run_sync(graph)


def test_plain_call_takes_a_typed_context() -> None:
    graph = Graph("typed_plain_call")

    @graph.task
    def load(context: Context[Stats]) -> None:
        context.fields.count += 1

    context = Context[Stats]({"count": 1})
    load(context)
    assert context.fields.count == 2
    with pytest.raises(InvalidArgument, match="the context has no fields: name a class in the annotation"):
        load(Context())


def test_tasks_name_the_same_class() -> None:
    graph = Graph("typed_two_classes")

    @graph.task
    def one(context: Context[Stats]) -> None: ...

    @graph.task
    def two(context: Context) -> None: ...

    @graph.task
    def three(context: Context[Model]) -> None: ...

    with pytest.raises(
        InvalidArgument, match="the tasks 'one' and 'three' of graph 'typed_two_classes' share"
    ):
        graph.validate()
    forget(graph)


def test_class_without_fields_is_rejected() -> None:
    for cls in (Root, None, "Stats", list[int]):
        with pytest.raises(InvalidArgument, match="cannot be the class of a context: give a dataclass"):
            Context[cls]()
    graph = Graph("typed_int")

    @graph.task
    def load(context: Context[int]) -> None: ...

    with pytest.raises(InvalidArgument, match="<class 'int'> cannot be the class of a context") as raised:
        graph.validate()
    assert raised.value.__notes__ == ["task 'load' of graph 'typed_int' names this class"]
    forget(graph)
    graph = Graph("typed_unknown_name")

    @graph.task
    def store(context: "Context[Missing]") -> None: ...  # type: ignore[name-defined] # noqa: F821

    with pytest.raises(
        InvalidArgument, match="annotation Context\\[Missing\\] of task 'store' .* cannot be eval"
    ):
        graph.validate()
    forget(graph)
    graph = Graph("typed_any")

    @graph.task
    def free(context: Context[Any]) -> None:
        context["anything"] = 1

    assert run_sync(graph) == {"anything": 1}


def test_typed_context_imports_no_library() -> None:
    program = """
import dataclasses, sys
from stepfast import Context, Engine, Graph

@dataclasses.dataclass
class Stats:
    count: int = 0

graph = Graph("imports_nothing")

@graph.task
def add(context: Context[Stats]) -> None:
    context.fields.count += 1

with Engine("memory:") as engine:
    assert engine.run(graph) == {"count": 1}
print(sorted({"attr", "attrs", "msgspec", "pydantic", "pydantic_core"} & set(sys.modules)))
"""
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (process.stdout, process.stderr) == ("[]\n", "")
