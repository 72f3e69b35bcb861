"""Annotations of tasks: which ones a graph accepts, and the errors for those that cannot agree."""

import asyncio
import collections.abc
import dataclasses
import datetime
import decimal
import enum
import functools
import pathlib
import typing
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional, Protocol, TypedDict, TypeVar, Union

import pytest
from graphs import forget

from stepfast import AsyncEngine, Context, Engine, Graph, InvalidArgument, workflow
from stepfast.rules import all_done

T = TypeVar("T")
UserId = NewType("UserId", int)


class Row(TypedDict):
    id: int


class Point(NamedTuple):
    x: int
    y: int


class Animal: ...


class Dog(Animal): ...


class Named: ...


class NamedDog(Dog, Named): ...


@dataclasses.dataclass
class Order:
    amount: int


class Color(enum.Enum):
    RED = 1


class Code(enum.StrEnum):
    A = "a"


class HasLength(Protocol):
    def __len__(self) -> int: ...


AGREEING: list[tuple[Any, Any]] = [
    (int, int),
    (int, Any),
    (Any, int),
    (int, object),
    (int, T),
    (list[T], list[int]),
    (bool, int),
    (int, bool),
    (int, float),
    (float, int),
    (int, complex),
    (decimal.Decimal, float),
    (Dog, Animal),
    (Animal, Dog),
    (Dog, Named),
    (str, Optional[str]),  # noqa: UP045
    (str | None, str),
    (str | None, int | None),
    (int | str, Union[str, bytes]),  # noqa: UP007
    (UserId, int),
    (int, UserId),
    (Annotated[int, "positive"], int),
    (list[Annotated[int, "positive"]], list[int]),
    (Literal["a", "b"], str),
    (str, Literal["a"]),
    (Code, str),
    (list[int], list),
    (list, list[int]),
    (list[int], list[float]),
    (list[int], collections.abc.Sequence[int]),
    (collections.abc.Iterable[int], list[int]),
    (list[int], typing.List[int]),  # noqa: UP006
    (dict[str, int], collections.abc.Mapping[str, int]),
    (dict[str, int], collections.abc.Iterable[str]),
    (dict[str, Any], dict[str, int]),
    (dict[str, Any], Row),
    (Row, dict[str, Any]),
    (Point, tuple[int, int]),
    (tuple[int, str], tuple[int, str]),
    (tuple[int, ...], tuple[int, int]),
    (tuple[int, str], collections.abc.Sequence[str]),
    (tuple[()], tuple[int, ...]),
    (list[int], HasLength),
    (HasLength, Order),
    (collections.abc.Sized, collections.abc.Hashable),
    (bytes, bytearray),
    (datetime.datetime, datetime.date),
    (type[int], type[str]),
    (Callable[[], int], type[Order]),
    (typing.NoReturn, int),
    (None, int | None),
    ("list[Unknown]", int),
    ("list[int]", list[int]),
    (list["Unknown"], list[int]),  # type: ignore[name-defined] # noqa: F821
    (17, int),
    ("1 +", int),
]

DISAGREEING: list[tuple[Any, Any]] = [
    (list[int], dict),
    (list[int], list[str]),
    (list[int], "list[str]"),
    ("list[int]", list[str]),
    (list["Order"], list[int]),
    (str, int),
    (int, str),
    (int, str | bytes),
    (str | None, int),
    (None, int),
    (UserId, str),
    (Annotated[int, "positive"], str),
    (Annotated[int, ["positive"]], str),
    (list[Annotated[int, "positive"]], list[str]),
    (Literal["a"], int),
    (Color, str),
    (list[int], set[int]),
    (list[int], tuple[int, ...]),
    (list[int], collections.abc.Mapping[int, int]),
    (list[int], collections.abc.Sequence[str]),
    (dict[str, int], dict[str, str]),
    (dict[str, int], dict[int, int]),
    (dict[str, int], collections.abc.Iterable[int]),
    (dict[str, list[int]], dict[str, list[str]]),
    (tuple[int, str], tuple[int, int]),
    (tuple[int, str], tuple[int]),
    (tuple[int, ...], tuple[str, ...]),
    (tuple[int, ...], collections.abc.Sequence[str]),
    (Row, list[int]),
    (Order, dict[str, int]),
    (Order, Animal),
    (Callable[[], int], Order),
    (pathlib.Path, str),
    (datetime.datetime, float),
]


@pytest.fixture
def graph() -> Iterator[Graph]:
    graph = Graph("annotated")
    yield graph
    forget(graph)


def connect(graph: Graph, returned: Any, expected: Any, is_async: bool = False) -> None:
    """Declares a task `load`, and a task `report` that takes its value."""

    def load() -> Any: ...

    async def load_async() -> Any: ...

    def report(load: Any) -> None: ...

    function: Any = load_async if is_async else load
    function.__annotations__["return"] = returned
    report.__annotations__["load"] = expected
    graph.task(name="load")(function)
    graph.task(report)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(("returned", "expected"), AGREEING)
def test_graph_accepts_types_that_may_agree(
    graph: Graph, returned: Any, expected: Any, is_async: bool
) -> None:
    connect(graph, returned, expected, is_async)
    graph.validate()


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(("returned", "expected"), DISAGREEING)
def test_graph_rejects_types_that_cannot_agree(
    graph: Graph, returned: Any, expected: Any, is_async: bool
) -> None:
    connect(graph, returned, expected, is_async)
    with pytest.raises(InvalidArgument, match="^the parameter 'load' of task 'report' of graph 'annotated'"):
        graph.validate()


def test_error_names_graph_task_parameter_and_both_types(graph: Graph) -> None:
    connect(graph, list[int], "dict[str, Order]")
    with pytest.raises(InvalidArgument) as raised:
        graph.validate()
    expected = f"dict[str, {Order.__module__}.Order]"
    assert str(raised.value) == (
        "the parameter 'load' of task 'report' of graph 'annotated' takes the value of 'load' as "
        f"{expected}, but 'load' returns list[int]: correct one of the two annotations"
    )


def test_missing_annotations_are_accepted(graph: Graph) -> None:
    @graph.task
    def load():  # type: ignore[no-untyped-def]
        return 1

    @graph.task
    def double(load: str) -> int:
        return len(load)

    @graph.task
    def report(double) -> None:  # type: ignore[no-untyped-def]
        ...

    graph.validate()


def test_default_of_none_changes_nothing(graph: Graph) -> None:
    @graph.task
    def load() -> int:
        return 1

    @graph.task(when=all_done())
    def accepted(load: int = None) -> None: ...  # type: ignore[assignment] # noqa: RUF013

    @graph.task(when=all_done())
    def rejected(load: str | None = None) -> None: ...

    with pytest.raises(InvalidArgument, match="task 'rejected' .* as str . None, but 'load' returns int"):
        graph.validate()


def map_over(graph: Graph, returned: Any, item: Any, value: Any, taken: Any) -> None:
    """Declares a task `pages`, a task `size` that is mapped over it, and a task `total` of the sizes."""

    def pages() -> Any: ...

    def size(pages: Any) -> Any: ...

    def total(size: Any) -> None: ...

    pages.__annotations__["return"] = returned
    size.__annotations__.update({"pages": item, "return": value})
    total.__annotations__["size"] = taken
    graph.task(pages)
    graph.task(map_over="pages")(size)
    graph.task(total)


@pytest.mark.parametrize(
    ("returned", "item", "value", "taken"),
    [
        (list[str], str, int, list[int]),
        (list, str, int, list),
        (tuple[str, int], int, int, collections.abc.Sequence[int]),
        (collections.abc.Sequence[str], str, Any, list[int]),
        (list[str] | None, str, list[int], list[list[int]]),
        (Any, str, int, Any),
        (object, str, int, object),
        (Point, int, int, list[int]),
    ],
)
def test_mapped_task_takes_items_and_returns_a_list(
    graph: Graph, returned: Any, item: Any, value: Any, taken: Any
) -> None:
    map_over(graph, returned, item, value, taken)
    graph.validate()


@pytest.mark.parametrize(
    ("returned", "item", "value", "taken", "message"),
    [
        (list[str], int, int, list[int], "takes an item of 'pages' as int, but 'pages' returns list.str."),
        (list[str], list[str], int, list[int], "takes an item of 'pages' as list.str., but 'pages' returns"),
        (dict[str, int], str, int, list[int], "mapped over 'pages', which returns dict.str, int., and must"),
        (str, str, int, list[int], "mapped over 'pages', which returns str, and must return a list"),
        (list[str], str, int, int, "takes the value of 'size' as int, but 'size' returns list.int."),
        (list[str], str, int, list[str], "as list.str., but 'size' returns list.int."),
        (list[str], str, Any, int, "as int, but 'size' returns list.*Any."),
    ],
)
def test_wrong_types_of_mapped_tasks_are_rejected(
    graph: Graph, returned: Any, item: Any, value: Any, taken: Any, message: str
) -> None:
    map_over(graph, returned, item, value, taken)
    with pytest.raises(InvalidArgument, match=message):
        graph.validate()


def test_tasks_agree_about_an_input(graph: Graph) -> None:
    @graph.task
    def first(size: int, name: str | None = None) -> None: ...

    @graph.task
    def second(size: float, name: str) -> None: ...

    @graph.task
    def third(size: str) -> None: ...

    with pytest.raises(InvalidArgument) as raised:
        graph.validate()
    assert str(raised.value) == (
        "the input 'size' of graph 'annotated' is int in task 'first', and str in task 'third': correct one "
        "of the two annotations, or rename one of the parameters"
    )


def test_value_of_a_task_with_context_is_checked(graph: Graph) -> None:
    @graph.task
    def load(context: Context) -> int:
        return len(context)

    @graph.task
    def report(context: Context, load: str) -> None: ...

    with pytest.raises(InvalidArgument, match="as str, but 'load' returns int"):
        graph.validate()


def test_functions_of_decorators_are_not_checked(graph: Graph) -> None:
    def as_text(function: Callable[..., Any]) -> Callable[..., str]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> str:
            return str(function(*args, **kwargs))

        return wrapper

    @graph.task
    @as_text
    def load() -> int:
        return 1

    @graph.task
    def report(load: str) -> str:
        return load

    assert run(graph) == "1"


@workflow(name="annotations.length_of")
def length_of(text: str) -> int:
    return len(text)


@pytest.mark.parametrize("returned", [str, int])
def test_included_workflow_is_checked(graph: Graph, returned: type) -> None:
    def text() -> Any: ...

    text.__annotations__["return"] = returned
    graph.task(text)
    graph.include(length_of, name="size")

    @graph.task
    def report(size: int) -> None: ...

    if returned is int:
        with pytest.raises(InvalidArgument, match="of task 'size' .* as str, but 'text' returns int"):
            graph.validate()
    else:
        graph.validate()


def test_value_of_an_included_workflow_is_checked(graph: Graph) -> None:
    graph.include(length_of, name="size")

    @graph.task
    def report(size: str) -> None: ...

    with pytest.raises(InvalidArgument, match="as str, but 'size' returns int"):
        graph.validate()


def test_inputs_of_an_included_graph_are_checked(graph: Graph) -> None:
    inner = Graph("annotated inner")

    @inner.task
    def measure(text: str) -> int:
        return len(text)

    @graph.task
    def text() -> list[str]:
        return []

    graph.include(inner, name="size")

    @graph.task
    def report(size: int) -> None: ...

    try:
        with pytest.raises(InvalidArgument, match="of task 'size' .* as str, but 'text' returns list.str."):
            graph.validate()
    finally:
        forget(inner)


def run(graph: Graph) -> Any:
    with Engine("memory:") as engine:
        return engine.run(graph)


def test_engine_rejects_the_graph_when_it_opens(graph: Graph) -> None:
    connect(graph, str, int)
    with pytest.raises(InvalidArgument, match="'load' returns str"):
        Engine("memory:")

    async def main() -> None:
        async with AsyncEngine("memory:"):
            pass

    with pytest.raises(InvalidArgument, match="'load' returns str"):
        asyncio.run(main())
