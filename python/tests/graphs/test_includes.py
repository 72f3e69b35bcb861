"""Tasks that are workflows or graphs, and graphs that workflows run."""

import asyncio
from typing import Any

import pytest
from graphs import forget

from stepfast import AsyncEngine, Engine, Graph, InvalidArgument, Queue, step, workflow

calls: list[str] = []


@step
def measure(text: str) -> int:
    calls.append(text)
    return len(text)


@workflow
def length_of(text: str) -> int:
    return measure(text)


@workflow
async def length_of_async(text: str) -> int:
    await asyncio.sleep(0)
    return len(text)


inner = Graph("inner")


@inner.task
def doubled(number: int) -> int:
    return 2 * number


@inner.task
def squared(doubled: int) -> int:
    return doubled**2


outer = Graph("outer")


@outer.task
def text(words: int) -> str:
    return "a" * words


outer.include(length_of, name="number")
outer.include(inner)


@outer.task
def total(inner: int, number: int) -> int:
    return inner + number


def test_task_is_a_workflow_or_a_graph(url: str) -> None:
    with Engine(url) as engine:
        assert engine.run(outer.options(workflow_id="x"), words=3) == 39
        assert outer.dependencies("number") == ["text"]
        record = engine.show("x")
        assert sorted(each.name for each in record.checkpoints) == ["inner", "length_of", "text", "total"]
        children = [each for each in engine.list() if each.workflow in ("inner", "length_of")]
        assert sorted(each.workflow for each in children) == ["inner", "length_of"]


def test_included_graph_is_recorded_once(url: str) -> None:
    calls.clear()
    graph = Graph("fails_after_child")
    graph.include(length_of, name="number")
    is_ready: list[bool] = []

    @graph.task
    def finish(number: int) -> int:
        if not is_ready:
            raise ValueError("not ready")
        return number

    with Engine(url) as engine:
        handle = engine.start(graph, text="abc")
        with pytest.raises(ValueError, match="not ready"):
            handle.result()
        is_ready.append(True)
        handle.resume()
        assert engine.get(handle.workflow_id).result() == 3
    assert calls == ["abc"]


def test_resume_runs_a_failed_child_again(url: str) -> None:
    attempts: list[int] = []
    graph = Graph("child_fails_once")

    @workflow(name="included_fails_once")
    def fails_once(number: int) -> int:
        attempts.append(number)
        if len(attempts) == 1:
            raise ValueError("first")
        return number

    graph.include(fails_once)
    with Engine(url) as engine:
        handle = engine.start(graph, number=5)
        with pytest.raises(ValueError, match="first"):
            handle.result()
        handle.resume()
        assert engine.get(handle.workflow_id).result() == 5
    assert attempts == [5, 5]


def test_workflow_is_mapped_over_items(url: str) -> None:
    graph = Graph("maps_workflows")

    @graph.task
    def texts(count: int) -> list[str]:
        return ["a" * n for n in range(count)]

    @workflow(name="length_of_item")
    def length(texts: str) -> int:
        return len(texts)

    graph.include(length, map_over=texts)
    with Engine(url) as engine:
        assert engine.run(graph, count=20) == list(range(20))


def test_async_graph_includes_sync_and_async_workflows(url: str) -> None:
    graph = Graph("async_outer")
    graph.include(length_of_async, name="one")
    graph.include(length_of, name="two")

    @graph.task
    async def both(one: int, two: int) -> int:
        return one + two

    async def main() -> int:
        async with AsyncEngine(url) as engine:
            result: int = await engine.run(graph, text="abc")
            return result

    assert asyncio.run(main()) == 6


def test_workflow_runs_a_graph_as_a_child(url: str) -> None:
    @workflow(name="runs_a_graph")
    def parent(number: int) -> Any:
        return inner(number=number)

    with Engine(url) as engine:
        assert engine.run(parent, 3) == 36


def test_plain_call_runs_included_functions() -> None:
    assert outer(words=3) == 39


def test_included_workflow_takes_options(url: str) -> None:
    graph = Graph("queued_child")
    graph.include(length_of.options(queue="includes"), name="number")
    with Engine(url, queues=[Queue("includes")]) as engine:
        assert engine.run(graph, text="abcd") == 4
        assert any(each.queue == "includes" for each in engine.list())


def test_wrong_includes_are_rejected() -> None:
    graph = Graph("wrong_includes")
    with pytest.raises(InvalidArgument, match="must be given a workflow or a graph"):
        graph.include(measure)  # type: ignore[arg-type]
    graph.include(length_of, name="number")
    with pytest.raises(InvalidArgument, match="two tasks named 'number'"):
        graph.include(length_of, name="number")


def test_graph_that_includes_itself_is_rejected() -> None:
    one, two = Graph("includes_two"), Graph("includes_one")
    one.include(two)
    two.include(one)
    try:
        with pytest.raises(InvalidArgument, match="graph 'includes_two' includes itself"):
            one.validate()
    finally:
        forget(one)
        forget(two)
