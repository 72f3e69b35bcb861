"""Rules with conditions on the context of a graph."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from graphs import forget

from stepfast import AsyncEngine, Context, Engine, Graph, InvalidArgument
from stepfast.rules import all_done, all_success, context_value, skipped


def chosen() -> Graph:
    """Returns a graph that adds to the key `ran` the names of the tasks that run."""
    graph = Graph("chosen", merge="concatenate")

    @graph.task
    def count(context: Context, rows: int) -> None:
        context["stats"] = {"rows": rows}

    @graph.task(after=count, when=context_value("stats")["rows"] > 10)
    def large(context: Context) -> None:
        context["ran"] = ["large"]

    @graph.task(after=count, when=all_success() & (context_value("stats")["rows"] <= 10))
    def small(context: Context) -> None:
        context["ran"] = ["small"]

    @graph.task(when=context_value("mode") == "full")
    def full(context: Context) -> None:
        context["ran"] = ["full"]

    # `count` is no dependency, so the key does not exist for this task
    @graph.task(when=skipped("full") & (context_value("stats")["rows"] != 0))
    def unrelated(context: Context) -> None:
        context["ran"] = ["unrelated"]

    return graph


@pytest.mark.parametrize(
    ("rows", "mode", "ran"),
    [(11, "full", ["full", "large"]), (3, "fast", ["small"]), (3, None, ["small"])],
)
def test_rules_read_the_context_before_their_tasks(url: str, rows: int, mode: Any, ran: list[str]) -> None:
    graph = chosen()
    context = {} if mode is None else {"mode": mode}
    with Engine(url) as engine:
        assert sorted(engine.run(graph, rows=rows, context=context)["ran"]) == ran
        record = engine.show(next(iter(engine.list(workflow="chosen"))).workflow_id)
    assert sorted(graph(rows=rows, context=context)["ran"]) == ran
    # the record evaluates the same rules
    tree = graph.to_tree(record)
    for task in ("large", "small", "full", "unrelated"):
        line = next(line for line in tree.splitlines() if f"─ {task} " in line)
        assert ("succeeded" if task in ran else "skipped") in line, tree


def test_async_tasks_have_rules_about_the_context(url: str) -> None:
    graph = Graph("async_rules")

    @graph.task
    async def count(context: Context) -> None:
        context["rows"] = 3

    @graph.task(after=count, when=context_value("rows") == 3)
    async def three(context: Context) -> None:
        context["three"] = True

    async def main() -> Any:
        async with AsyncEngine(url) as engine:
            return await engine.run(graph)

    assert asyncio.run(main()) == {"rows": 3, "three": True}


def test_rule_about_a_conflict_fails_its_task(url: str) -> None:
    graph = Graph("conflicts")
    called: list[str] = []

    @graph.task
    def one(context: Context) -> None:
        context["k"] = 1

    @graph.task
    def other(context: Context) -> None:
        context["k"] = 2

    @graph.task(after=[one, other], when=all_done() & ~(context_value("k") == 7))
    def reader() -> None:
        called.append("reader")

    with Engine(url) as engine, pytest.raises(InvalidArgument, match="the context key 'k'") as raised:
        engine.run(graph)
    assert "task 'reader' of graph 'conflicts' failed" in raised.value.__notes__
    assert "'one' and 'other'" in str(raised.value)
    assert called == []


def test_merge_function_that_fails_fails_the_task_of_the_rule() -> None:
    def merge(key: str, values: list[Any]) -> Any:
        raise ZeroDivisionError(key)

    graph = Graph("fails", merge=merge)

    @graph.task
    def one(context: Context) -> None:
        context["k"] = 1

    @graph.task
    def other(context: Context) -> None:
        context["k"] = 2

    @graph.task(after=[one, other], when=context_value("k") == 7)
    def reader() -> None: ...

    with Engine("memory:") as engine, pytest.raises(ZeroDivisionError, match="k") as raised:
        engine.run(graph)
    assert "task 'reader' of graph 'fails' failed" in raised.value.__notes__


def test_context_without_a_task_that_takes_it_comes_from_the_input() -> None:
    graph = Graph("input_only")
    called: list[str] = []

    @graph.task(when=context_value("mode") == "full")
    def full() -> None:
        called.append("full")

    @graph.task(after=full)
    def after_full() -> None:
        called.append("after_full")

    with Engine("memory:") as engine:
        assert engine.run(graph, context={"mode": "fast"}) == {"mode": "fast"}
        assert called == []
        engine.run(graph, context={"mode": "full"})
        assert called == ["full", "after_full"]


@dataclass
class Stats:
    rows: int = 0


def test_wrong_keys_are_rejected() -> None:
    graph = Graph("wrong")

    @graph.task
    def count(context: Context[Stats]) -> None: ...

    @graph.task(after=count, when=context_value("rwos") > 0)
    def load() -> None: ...

    with pytest.raises(InvalidArgument, match="'rwos' in the rule of task 'load' of graph 'wrong'.*'rows'"):
        graph.validate()
    forget(graph)
    key: Any = 7
    with pytest.raises(InvalidArgument, match="context key 7 is no text"):
        context_value(key)


def test_text_of_a_rule_names_the_key() -> None:
    assert repr(context_value("stats")["rows"] > 1) == 'context_value("stats")["rows"] > 1'
    with pytest.raises(InvalidArgument, match='context_value\\("k"\\) is no rule yet'):
        bool(context_value("k"))
