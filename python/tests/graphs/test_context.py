"""The context of graphs: the values that tasks share by key."""

import asyncio
import dataclasses
from typing import Any

import pytest
from graphs import forget

from stepfast import AsyncEngine, Context, EncodeError, Engine, Graph, InvalidArgument
from stepfast.rules import all_done


def run_sync(graph: Graph, url: str = "memory:", **inputs: Any) -> Any:
    with Engine(url) as engine:
        return engine.run(graph, **inputs)


etl = Graph("context_etl")


@etl.task
def extract(context: Context) -> None:
    context.insert("numbers", [1, 2, 3])
    context.update("runs", context["runs"] + 1)


@etl.task(after=[extract])
def double(context: Context) -> None:
    context["doubled"] = [2 * number for number in context["numbers"]]


@etl.task(after=[extract])
def count(context: Context) -> int:
    context["count"] = len(context["numbers"])
    return context["count"]


@etl.task(after=[double])
def load(shared: "Context", count: int) -> None:
    shared["total"] = sum(shared["doubled"]) + count
    shared.remove("numbers")


def test_tasks_share_values_by_key(url: str) -> None:
    with Engine(url) as engine:
        handle = engine.start(etl.options(workflow_id="x"), context={"runs": 0})
        assert handle.result() == {"runs": 1, "doubled": [2, 4, 6], "count": 3, "total": 15}
        values = {each.name: each.value for each in engine.show("x").checkpoints}
        # each task records its own changes only
        assert values["double"] == {"value": None, "set": {"doubled": [2, 4, 6]}, "removed": []}
        assert values["count"] == {"value": 3, "set": {"count": 3}, "removed": []}
        assert values["load"]["removed"] == ["numbers"]


def test_plain_call_shares_values() -> None:
    assert etl(context={"runs": 4})["runs"] == 5
    context = Context({"runs": 0})
    extract(context)
    assert context.to_dict() == {"runs": 1, "numbers": [1, 2, 3]}


def test_async_tasks_share_values(url: str) -> None:
    graph = Graph("context_async")

    @graph.task
    async def first(context: Context) -> None:
        context["a"] = 1

    @graph.task(after=first)
    def second(context: Context) -> None:
        context["b"] = context["a"] + 1

    async def main() -> Any:
        async with AsyncEngine(url) as engine:
            return await engine.run(graph)

    assert asyncio.run(main()) == {"a": 1, "b": 2}


def test_keys_are_inserted_updated_and_removed() -> None:
    context = Context({"a": 1})
    with pytest.raises(InvalidArgument, match="context key 'a' exists already, with 1: use update or set"):
        context.insert("a", 2)
    with pytest.raises(KeyError, match="the context has no key 'b'; its keys are: 'a'"):
        context.update("b", 2)
    with pytest.raises(KeyError):
        context.remove("b")
    with pytest.raises(KeyError):
        _ = context["b"]
    with pytest.raises(InvalidArgument, match="context key 1 is no text"):
        context[1] = 2  # type: ignore[index]
    with pytest.raises(EncodeError, match="context key 'lock'"):
        context["lock"] = iter([])
    assert context.get("b") is None and context.get("b", 3) == 3
    context["b"] = 2
    assert ("b" in context, len(context), list(context)) == (True, 2, ["a", "b"])
    assert context.remove("a") == 1
    del context["b"]
    assert len(context) == 0 and context.changes() == {"set": {}, "removed": ["a", "b"]}


def test_read_is_a_copy() -> None:
    given = {"list": [1]}
    context = Context()
    context["a"] = given
    given["list"].append(2)
    context["a"]["list"].append(3)
    assert context["a"] == {"list": [1]}


def test_failed_attempt_changes_nothing(url: str) -> None:
    graph = Graph("context_retry")
    attempts: list[int] = []

    @graph.task(retries=1, backoff=0)
    def flaky(context: Context) -> None:
        context.insert("a", len(attempts))
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError("once")

    assert run_sync(graph, url) == {"a": 1}


def test_resume_restores_the_context(url: str) -> None:
    graph = Graph("context_resume")
    is_ready: list[bool] = []

    @graph.task
    def first(context: Context) -> None:
        assert not is_ready, "recorded once"
        context["a"] = {1: dataclasses.asdict(Point(1, 2))}

    @graph.task(after=first)
    def second(context: Context) -> None:
        if not is_ready:
            raise ValueError("not ready")
        context["b"] = context["a"][1]["x"]

    with Engine(url) as engine:
        handle = engine.start(graph)
        with pytest.raises(ValueError, match="not ready"):
            handle.result()
        is_ready.append(True)
        handle.resume()
        assert engine.get(handle.workflow_id).result() == {"a": {1: {"x": 1, "y": 2}}, "b": 1}


@dataclasses.dataclass
class Point:
    x: int
    y: int


def parallel_graph(name: str, values: list[Any], **options: Any) -> Graph:
    """Returns a graph whose parallel tasks write these values under one key."""
    graph = Graph(name, **options)
    for number, value in enumerate(values):

        @graph.task(name=f"t{number}")
        def write(context: Context, value: Any = value) -> None:
            context["key"] = value

    @graph.task(after=[f"t{number}" for number in range(len(values))])
    def join(context: Context) -> None:
        context["seen"] = context.get("key")

    return graph


def test_key_that_parallel_tasks_write_is_a_conflict(url: str) -> None:
    graph = parallel_graph("context_conflict", [1, 2])
    with pytest.raises(
        InvalidArgument,
        match="the tasks 't0' and 't1' of graph 'context_conflict' have both written the context key 'key'",
    ) as raised:
        run_sync(graph, url)
    assert "task 'join' of graph 'context_conflict' failed" in raised.value.__notes__


@pytest.mark.parametrize(
    ("merge", "values", "expected"),
    [
        ("last", [1, 2, 3], 3),
        ("concatenate", [[1], [2], [3, 4]], [1, 2, 3, 4]),
        ("concatenate", ["a", "b"], "ab"),
        ("deep", [{"a": {"x": 1}, "l": [1]}, {"a": {"y": 2}, "l": [2], "b": 3}], None),
        (lambda _, values: sum(values), [1, 2, 4], 7),
    ],
    ids=["last", "lists", "texts", "deep", "function"],
)
def test_policy_merges_values(url: str, merge: Any, values: list[Any], expected: Any) -> None:
    graph = parallel_graph(
        f"context_{merge if isinstance(merge, str) else 'sum'}_{values[0]!r}", values, merge=merge
    )
    expected = {"a": {"x": 1, "y": 2}, "l": [1, 2], "b": 3} if expected is None else expected
    assert run_sync(graph, url) == {"key": expected, "seen": expected}


def join_in_place(key: str, values: list[Any]) -> Any:
    for value in values[1:]:
        values[0] += value
    return values[0]


@pytest.mark.parametrize("merge", ["concatenate", "deep", join_in_place])
def test_merged_values_are_merged_once(url: str, merge: Any) -> None:
    graph = Graph(f"merged_once.{url[:6]}", merge=merge)

    def write(name: str, *after: Any) -> Any:
        def body(context: Context) -> None:
            context["k"] = [name]

        return graph.task(name=name, after=after)(body)

    def read(name: str, *after: Any) -> Any:
        def body(context: Context) -> None:
            context[name] = context["k"]

        return graph.task(name=name, after=after)(body)

    one, two = write("one"), write("two")
    # both read the merged value, and pass it on
    left, right = read("left", one, two), read("right", one, two)
    read("last", left, right, write("three"))
    output = run_sync(graph, url)
    assert output["left"] == output["right"] == ["one", "two"]
    assert output["last"] == output["k"] == ["one", "two", "three"]


def test_values_that_cannot_be_concatenated_are_named() -> None:
    graph = parallel_graph("context_unmergeable", [1, [2]], merge="concatenate")
    with pytest.raises(InvalidArgument, match=r"the context key 'key' with 1 and \[2\], and only two lists"):
        run_sync(graph)


def test_later_task_overwrites_an_earlier_one() -> None:
    graph = Graph("context_overwrite")

    @graph.task
    def first(context: Context) -> None:
        context["key"] = 1

    @graph.task(after=first)
    def second(context: Context) -> None:
        context["key"] = 2

    @graph.task(after=[first, second])
    def join(context: Context) -> None:
        context["seen"] = context["key"]

    assert run_sync(graph) == {"key": 2, "seen": 2}


def test_failed_and_skipped_tasks_pass_the_context_on() -> None:
    graph = Graph("context_skips")

    @graph.task
    def first(context: Context) -> None:
        context["a"] = 1

    @graph.task(after=first, may_fail=True)
    def fails(context: Context) -> None:
        context["lost"] = 1
        raise ValueError

    @graph.task(after=fails)
    def skipped(context: Context) -> None:
        context["lost"] = 2

    @graph.task(after=skipped, when=all_done())
    def last(context: Context) -> None:
        context["b"] = context["a"] + 1

    assert run_sync(graph) == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("context", "message"),
    [
        (3, "the input 'context' of graph 'context_input' is 3, and must be a dict"),
        ([], "the input 'context' of graph 'context_input' is \\[\\], and must be a dict"),
        ({1: 2}, "the context key 1 of the input of graph 'context_input' is no text"),
    ],
    ids=repr,
)
def test_wrong_input_of_the_context_is_rejected(context: Any, message: str) -> None:
    graph = Graph("context_input")

    @graph.task
    def write(context: Context) -> None: ...

    with Engine("memory:") as engine:
        assert engine.run(graph, context=None) == {}
        with pytest.raises(InvalidArgument, match=message):
            engine.run(graph, context=context)


def test_wrong_contexts_are_rejected() -> None:
    with pytest.raises(InvalidArgument, match="merge is 'first', and must be 'error', 'last'"):
        Graph("context_policy", merge="first")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="'one' and 'two' of .*both take the context"):

        @Graph("context_twice").task
        def both(one: Context, two: Context) -> None: ...

    graph = Graph("context_mapped")

    @graph.task
    def items() -> list[int]:
        return [1]

    @graph.task(map_over=items)
    def each(items: int, context: Context) -> None: ...

    with pytest.raises(InvalidArgument, match="is mapped over items and takes the context"):
        graph.validate()
    forget(graph)
    graph = Graph("context_without_annotation")

    @graph.task
    def one(context: Context) -> None: ...

    @graph.task
    def two(context) -> None: ...  # type: ignore[no-untyped-def]

    with pytest.raises(InvalidArgument, match="'context' of task 'two' .* needs the annotation Context"):
        graph.validate()
    forget(graph)
