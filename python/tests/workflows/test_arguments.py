"""Arguments of starts and calls: refusal of invalid ones, and equality of different spellings."""

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
def joins_arguments(a: int, b: int = 2, *, c: str = "c") -> str:
    return f"{a} {b} {c}"


@workflow
async def joins_arguments_async(a: int, b: int = 2, *, c: str = "c") -> str:
    return f"{a} {b} {c}"


@workflow
def joins_any_arguments(a: int, b: int = 2, /, *more: int, **keywords: int) -> str:
    return f"{a} {b} {more} {sorted(keywords.items())}"


@dataclass
class Joiner:
    name: str

    @workflow
    def joins(self, a: int, b: int = 2) -> str:
        return f"{self.name} {a} {b}"


EQUAL_CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {}),
    ((), {"a": 1}),
    ((1, 2), {}),
    ((1,), {"b": 2}),
    ((), {"b": 2, "a": 1}),
    ((1,), {"c": "c"}),
    ((1, 2), {"c": "c"}),
]
DIFFERENT_CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((2,), {}),
    ((1, 3), {}),
    ((1,), {"c": "d"}),
    ((1, True), {}),
    ((1.0,), {}),
]
INVALID_CALLS: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((), {}, "missing a required argument: 'a'"),
    ((1, 2, 3), {}, "too many positional arguments"),
    ((1,), {"a": 1}, "multiple values for argument 'a'"),
    ((1,), {"d": 1}, "got an unexpected keyword argument 'd'"),
    ((), {"b": 2}, "missing a required argument: 'a'"),
]


def test_equal_arguments_in_other_spelling_are_no_conflict(url: str) -> None:
    with Engine(url) as engine:
        for args, kwargs in EQUAL_CALLS:
            assert engine.run(joins_arguments.options(workflow_id="x"), *args, **kwargs) == "1 2 c"
            assert engine.start(joins_arguments.options(workflow_id="x"), *args, **kwargs).result() == "1 2 c"
        for args, kwargs in DIFFERENT_CALLS:
            with pytest.raises(Conflict):
                engine.run(joins_arguments.options(workflow_id="x"), *args, **kwargs)
        joiner = Joiner("tea")
        assert engine.start(joiner.joins.options(workflow_id="m"), 1).result() == "tea 1 2"
        assert engine.start(joiner.joins.options(workflow_id="m"), b=2, a=1).result() == "tea 1 2"
        with pytest.raises(Conflict):
            engine.start(Joiner("cup").joins.options(workflow_id="m"), 1)
    with Client(url) as client:
        # a remote workflow with the name of a local one takes the parameters of the local one
        assert client.run(joins_arguments.options(workflow_id="x"), a=1) == "1 2 c"
        with_id = RemoteWorkflow("joins_arguments").options(workflow_id="x")
        assert client.start(with_id, 1).result() == "1 2 c"
        assert client.start(with_id, b=2, a=1).result() == "1 2 c"


def test_positional_only_argument_differs_from_keyword(url: str) -> None:
    with Engine(url) as engine:
        with_id = joins_any_arguments.options(workflow_id="x")
        assert engine.start(with_id, 1, a=5).result() == "1 2 () [('a', 5)]"
        assert engine.start(with_id, 1, 2, a=5).result() == "1 2 () [('a', 5)]"
        others: list[tuple[tuple[int, ...], dict[str, int]]] = [
            ((1,), {"b": 5}),
            ((1, 5), {}),
            ((1, 2, 5), {}),
            ((1,), {}),
        ]
        for args, kwargs in others:
            with pytest.raises(Conflict):
                engine.start(with_id, *args, **kwargs)


def test_refused_start_leaves_its_id_unused(url: str) -> None:
    with Engine(url) as engine, Client(url) as client:
        for args, kwargs, reason in INVALID_CALLS:
            calls: list[Callable[..., Any]] = [engine.start, engine.run, client.start]
            for call, target in itertools.product(
                calls, (joins_arguments, joins_arguments.options(workflow_id="x"))
            ):
                with pytest.raises(TypeError, match="do not fit joins_arguments") as raised:
                    call(target, *args, **kwargs)
                assert reason in str(raised.value)
        for items in ([()], [(1, 2, 3)]):
            with pytest.raises(TypeError, match="do not fit joins_arguments"):
                engine.start_many(joins_arguments, items)
        with pytest.raises(TypeError, match=r"do not fit Joiner.joins\(self, a"):
            engine.start(Joiner("tea").joins.options(workflow_id="x"))  # type: ignore[call-overload]
        assert engine.count() == 0
        assert engine.start(joins_arguments.options(workflow_id="x"), 1).result() == "1 2 c"


def test_async_engine_refuses_invalid_arguments(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            for args, kwargs, reason in INVALID_CALLS:
                with_id: Any = joins_arguments_async.options(workflow_id="x")
                for call, target in [
                    (engine.start, with_id),
                    (engine.run, with_id),
                    (engine.run, joins_arguments_async),
                ]:
                    with pytest.raises(TypeError, match="do not fit joins_arguments_async") as raised:
                        await call(target, *args, **kwargs)
                    assert reason in str(raised.value)
            assert await engine.count() == 0
            for args, kwargs in EQUAL_CALLS:
                assert (
                    await engine.run(joins_arguments_async.options(workflow_id="x"), *args, **kwargs)
                    == "1 2 c"
                )

    asyncio.run(main())


@workflow
def calls_child_wrongly() -> list[str]:
    messages = []
    for call in (
        joins_arguments,
        joins_arguments.start,
        joins_arguments.start_detached,
        joins_arguments.options(priority=None).start,
    ):
        try:
            call()  # type: ignore[call-arg,operator]
        except TypeError as error:
            messages.append(str(error))
    return messages


def test_child_with_invalid_arguments_is_refused_at_its_call(url: str) -> None:
    with Engine(url) as engine:
        messages = engine.run(calls_child_wrongly)
        assert len(messages) == 4
        assert all("missing a required argument: 'a'" in message for message in messages)
        assert engine.count() == 1


def inject_argument(function: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(function)
    def call(*args: Any) -> str:
        return function("injected", *args)

    return call


def test_wrapped_function_takes_arguments_of_its_wrapper(url: str) -> None:
    @workflow(name="takes_injected_argument")
    @inject_argument
    def takes_injected_argument(first: str, second: int) -> str:
        return f"{first} {second}"

    with Engine(url) as engine:
        assert engine.start(takes_injected_argument, 1).result() == "injected 1"


def test_redefined_workflow_has_parameters_of_its_own(url: str) -> None:
    def define(source: str) -> Any:
        scope: dict[str, Any] = {"workflow": workflow, "__name__": __name__}
        exec(f"@workflow(name='redefined_parameters')\n{source}", scope)
        return scope["f"]

    first = define("def f(a: int) -> int: return a")
    with Engine(url) as engine:
        assert engine.run(first, 1) == 1
        second = define("def f(a: int, b: int) -> int: return a + b")
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
def multiplies(n: int, times: int = 2) -> int:
    return n * times


SHIPPER = Shipper("shipper")
#: The calls that the workflow `makes_calls` makes; tests change them between two runs.
CALLS_IN_CODE: list[Callable[[], object]] = []
BODY_HAS_BEGUN, BODY_MAY_END = threading.Event(), threading.Event()


@step
def block() -> None:
    BODY_HAS_BEGUN.set()
    BODY_MAY_END.wait(60)


@workflow
def makes_calls() -> list[object]:
    outputs = [call() for call in CALLS_IN_CODE]
    block()
    return outputs


FIRST_CALLS: list[Callable[[], object]] = [
    lambda: price("tea"),
    lambda: SHIPPER.ship("tea"),
    lambda: multiplies(21),
    lambda: multiplies.start(21).result(),
]
CHANGED_CALLS: list[tuple[int, Callable[[], object], bool]] = [
    (0, lambda: price(item="tea"), True),
    (0, lambda: price("tea", "eur", places=2), True),
    (0, lambda: price(places=2, item="tea"), True),
    (0, lambda: price("tea", "usd"), False),
    (0, lambda: price("tea", places=3), False),
    (1, lambda: SHIPPER.ship(item="tea"), True),
    (1, lambda: SHIPPER.ship("tea", False), True),
    (1, lambda: SHIPPER.ship("tea", fast=True), False),
    (2, lambda: multiplies(n=21), True),
    (2, lambda: multiplies(times=2, n=21), True),
    (2, lambda: multiplies(21, 3), False),
    (3, lambda: multiplies.start(21, times=2).result(), True),
    (3, lambda: multiplies.start(21, times=3).result(), False),
]


@pytest.mark.parametrize(("index", "call", "is_same"), CHANGED_CALLS)
def test_replay_compares_arguments_but_not_their_spelling(
    tmp_path: pathlib.Path, index: int, call: Callable[[], object], is_same: bool
) -> None:
    url = f"sqlite:{tmp_path}/test.db"
    BODY_HAS_BEGUN.clear()
    BODY_MAY_END.clear()
    CALLS_IN_CODE[:] = FIRST_CALLS
    with Engine(url) as engine:
        handle = engine.start(makes_calls.options(workflow_id="x"))
        assert BODY_HAS_BEGUN.wait(60)
        # the body continues in its thread, and the engine drops its output
        engine.close(0.0)
    BODY_MAY_END.set()
    CALLS_IN_CODE[index] = call
    with Engine(url) as engine:
        handle = engine.get("x")
        if is_same:
            assert handle.result() == ["tea eur 2", "tea False", 42, 42]
        else:
            with pytest.raises(WorkflowParked, match="recorded with other arguments"):
                handle.result()


def test_invalid_arguments_raise_type_error_of_python() -> None:
    # as for any function of Python: a handler of `InvalidArgument` does not hide a wrong call
    assert not issubclass(TypeError, InvalidArgument)
    with pytest.raises(TypeError):
        joins_arguments()  # type: ignore[call-arg]
    assert step(lambda n=1: n)(n=2) == 2
