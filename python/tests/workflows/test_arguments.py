"""Arguments: a call that the function does not take is refused, and one call in two spellings is one call."""

from __future__ import annotations

import asyncio
import functools
import itertools
import pathlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from stepfast import (
    AsyncEngine,
    Client,
    Conflict,
    Engine,
    Instance,
    InvalidArgument,
    RemoteWorkflow,
    WorkflowParked,
    step,
    workflow,
)


@workflow
def spelled(a: int, b: int = 2, *, c: str = "c") -> str:
    return f"{a} {b} {c}"


@workflow
async def spelled_async(a: int, b: int = 2, *, c: str = "c") -> str:
    return f"{a} {b} {c}"


@workflow
def spelled_by_position(a: int, b: int = 2, /, *more: int, **named: int) -> str:
    return f"{a} {b} {more} {sorted(named.items())}"


@dataclass
class Spelled:
    name: str

    @workflow
    def method(self, a: int, b: int = 2) -> str:
        return f"{self.name} {a} {b}"


SAME: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {}),
    ((), {"a": 1}),
    ((1, 2), {}),
    ((1,), {"b": 2}),
    ((), {"b": 2, "a": 1}),
    ((1,), {"c": "c"}),
    ((1, 2), {"c": "c"}),
]
OTHER: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((2,), {}),
    ((1, 3), {}),
    ((1,), {"c": "d"}),
    ((1, True), {}),
    ((1.0,), {}),
]
WRONG: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((), {}, "missing a required argument: 'a'"),
    ((1, 2, 3), {}, "too many positional arguments"),
    ((1,), {"a": 1}, "multiple values for argument 'a'"),
    ((1,), {"d": 1}, "got an unexpected keyword argument 'd'"),
    ((), {"b": 2}, "missing a required argument: 'a'"),
]


def test_a_call_in_another_spelling_is_the_same_call(url: str) -> None:
    with Engine(url) as engine:
        for args, kwargs in SAME:
            assert engine.run(spelled.options(workflow_id="x"), *args, **kwargs) == "1 2 c"
            assert engine.start(spelled.options(workflow_id="x"), *args, **kwargs).result() == "1 2 c"
        for args, kwargs in OTHER:
            with pytest.raises(Conflict):
                engine.run(spelled.options(workflow_id="x"), *args, **kwargs)
        shop = Spelled("tea")
        assert engine.start(shop.method.options(workflow_id="m"), 1).result() == "tea 1 2"
        assert engine.start(shop.method.options(workflow_id="m"), b=2, a=1).result() == "tea 1 2"
        with pytest.raises(Conflict):
            engine.start(Spelled("cup").method.options(workflow_id="m"), 1)
    with Client(url) as client:
        # a workflow given by its name is that which the program defines
        assert client.run(spelled.options(workflow_id="x"), a=1) == "1 2 c"
        named = RemoteWorkflow("spelled").options(workflow_id="x")
        assert client.start(named, 1).result() == "1 2 c"
        assert client.start(named, b=2, a=1).result() == "1 2 c"


def test_what_can_be_given_by_position_only_is_told_apart(url: str) -> None:
    with Engine(url) as engine:
        named = spelled_by_position.options(workflow_id="x")
        assert engine.start(named, 1, a=5).result() == "1 2 () [('a', 5)]"
        assert engine.start(named, 1, 2, a=5).result() == "1 2 () [('a', 5)]"
        others: list[tuple[tuple[int, ...], dict[str, int]]] = [
            ((1,), {"b": 5}),
            ((1, 5), {}),
            ((1, 2, 5), {}),
            ((1,), {}),
        ]
        for args, kwargs in others:
            with pytest.raises(Conflict):
                engine.start(named, *args, **kwargs)


def test_a_call_that_the_function_does_not_take_is_refused_and_keeps_the_id_free(url: str) -> None:
    with Engine(url) as engine, Client(url) as client:
        for args, kwargs, why in WRONG:
            calls: list[Callable[..., Any]] = [engine.start, engine.run, client.start]
            for call, given in itertools.product(calls, (spelled, spelled.options(workflow_id="x"))):
                with pytest.raises(TypeError, match="do not fit spelled") as caught:
                    call(given, *args, **kwargs)
                assert why in str(caught.value)
        for items in ([()], [(1, 2, 3)]):
            with pytest.raises(TypeError, match="do not fit spelled"):
                engine.start_many(spelled, items)
        with pytest.raises(TypeError, match=r"do not fit Spelled.method\(self, a"):
            engine.start(Spelled("tea").method.options(workflow_id="x"))  # type: ignore[call-overload]
        assert engine.count() == 0
        assert engine.start(spelled.options(workflow_id="x"), 1).result() == "1 2 c"


def test_async_engines_refuse_the_same(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            for args, kwargs, why in WRONG:
                named: Any = spelled_async.options(workflow_id="x")
                for call, given in [(engine.start, named), (engine.run, named), (engine.run, spelled_async)]:
                    with pytest.raises(TypeError, match="do not fit spelled_async") as caught:
                        await call(given, *args, **kwargs)
                    assert why in str(caught.value)
            assert await engine.count() == 0
            for args, kwargs in SAME:
                assert await engine.run(spelled_async.options(workflow_id="x"), *args, **kwargs) == "1 2 c"

    asyncio.run(main())


@workflow
def calls_wrongly() -> list[str]:
    said = []
    for call in (spelled, spelled.start, spelled.start_detached, spelled.options(priority=None).start):
        try:
            call()  # type: ignore[call-arg,operator]
        except TypeError as error:
            said.append(str(error))
    return said


def test_children_that_are_called_wrongly_are_refused_where_they_are_called(url: str) -> None:
    with Engine(url) as engine:
        said = engine.run(calls_wrongly)
        assert len(said) == 4 and all("missing a required argument: 'a'" in each for each in said)
        assert engine.count() == 1


def injected(function: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(function)
    def call(*args: Any) -> str:
        return function("injected", *args)

    return call


def test_a_function_that_is_wrapped_is_called_as_its_wrapper(url: str) -> None:
    @workflow(name="wrapped")
    @injected
    def wrapped(first: str, second: int) -> str:
        return f"{first} {second}"

    with Engine(url) as engine:
        assert engine.start(wrapped, 1).result() == "injected 1"


def test_a_definition_that_takes_the_place_of_another_has_its_own_parameters(url: str) -> None:
    def defined(source: str) -> Any:
        scope: dict[str, Any] = {"workflow": workflow, "__name__": __name__}
        exec(f"@workflow(name='redefined_spelling')\n{source}", scope)
        return scope["f"]

    first = defined("def f(a: int) -> int: return a")
    with Engine(url) as engine:
        assert engine.run(first, 1) == 1
        second = defined("def f(a: int, b: int) -> int: return a + b")
        assert engine.run(second, 1, 2) == 3
        with pytest.raises(TypeError, match="missing a required argument: 'b'"):
            engine.run(second, 1)


@step
def price(item: str, currency: str = "eur", *, places: int = 2) -> str:
    return f"{item} {currency} {places}"


class Shipper(Instance):
    @step
    def ship(self, item: str, fast: bool = False) -> str:
        return f"{item} {fast}"


@workflow
def doubled(n: int, times: int = 2) -> int:
    return n * times


SHIPPER = Shipper("shipper")
#: The calls that the code of `respelled` makes now.
CODE: list[Callable[[], object]] = []
STANDS, GOES = threading.Event(), threading.Event()


@step
def stands() -> None:
    STANDS.set()
    GOES.wait(60)


@workflow
def respelled() -> list[object]:
    found = [call() for call in CODE]
    stands()
    return found


BEFORE: list[Callable[[], object]] = [
    lambda: price("tea"),
    lambda: SHIPPER.ship("tea"),
    lambda: doubled(21),
    lambda: doubled.start(21).result(),
]
AFTER: list[tuple[int, Callable[[], object], bool]] = [
    (0, lambda: price(item="tea"), True),
    (0, lambda: price("tea", "eur", places=2), True),
    (0, lambda: price(places=2, item="tea"), True),
    (0, lambda: price("tea", "usd"), False),
    (0, lambda: price("tea", places=3), False),
    (1, lambda: SHIPPER.ship(item="tea"), True),
    (1, lambda: SHIPPER.ship("tea", False), True),
    (1, lambda: SHIPPER.ship("tea", fast=True), False),
    (2, lambda: doubled(n=21), True),
    (2, lambda: doubled(times=2, n=21), True),
    (2, lambda: doubled(21, 3), False),
    (3, lambda: doubled.start(21, times=2).result(), True),
    (3, lambda: doubled.start(21, times=3).result(), False),
]


@pytest.mark.parametrize(("place", "call", "is_same"), AFTER)
def test_code_in_which_a_call_is_spelled_anew_goes_on(
    tmp_path: pathlib.Path, place: int, call: Callable[[], object], is_same: bool
) -> None:
    url = f"sqlite:{tmp_path}/test.db"
    STANDS.clear()
    GOES.clear()
    CODE[:] = BEFORE
    with Engine(url) as engine:
        handle = engine.start(respelled.options(workflow_id="x"))
        assert STANDS.wait(60)
        # the body goes on in its thread, and what it returns is dropped
        engine.close(0.0)
    GOES.set()
    CODE[place] = call
    with Engine(url) as engine:
        handle = engine.get("x")
        if is_same:
            assert handle.result() == ["tea eur 2", "tea False", 42, 42]
        else:
            with pytest.raises(WorkflowParked, match="recorded with other arguments"):
                handle.result()


def test_a_refused_call_is_no_invalid() -> None:
    # as of any function of Python: who catches what an engine refuses does not hide a wrong call
    assert not issubclass(TypeError, InvalidArgument)
    with pytest.raises(TypeError):
        spelled()  # type: ignore[call-arg]
    assert step(lambda n=1: n)(n=2) == 2
