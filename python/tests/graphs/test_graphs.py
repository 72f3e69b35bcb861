"""Graphs: values, rules, failures, limits and restarts, sync and async, and the errors of wrong graphs."""

import asyncio
import pathlib
import threading
from typing import Any

import pytest

from stepfast import AsyncEngine, Engine, Graph, InvalidArgument, step, workflow
from stepfast.rules import all_done, any_success, failed, none_failed, one_failed, skipped, succeeded

etl = Graph("etl")


@etl.task(retries=2)
def extract(source: str) -> list[int]:
    return [len(word) for word in source.split()]


@etl.task
def double(extract: list[int]) -> list[int]:
    return [2 * number for number in extract]


@etl.task
def triple(extract: list[int]) -> list[int]:
    return [3 * number for number in extract]


@etl.task
def merge(double: list[int], triple: list[int]) -> int:
    return sum(double) + sum(triple)


order = Graph("order")


@order.task
async def charge(amount: int) -> int:
    return amount


@order.task(may_fail=True)
def ship(charge: int, in_stock: bool) -> str:
    if not in_stock:
        raise ValueError("out of stock")
    return f"shipped for {charge}"


@order.task(when=failed(ship) & succeeded(charge))
async def refund(charge: int) -> int:
    return -charge


@order.task(when=all_done())
async def report(ship: str | None = None, refund: int | None = None) -> tuple[str | None, int | None]:
    return ship, refund


def run_sync(graph: Graph, url: str = "memory:", **inputs: Any) -> Any:
    with Engine(url) as engine:
        return engine.run(graph, **inputs)


async def run_async(graph: Graph, url: str = "memory:", **inputs: Any) -> Any:
    async with AsyncEngine(url) as engine:
        return await engine.run(graph, **inputs)


def test_tasks_receive_the_values_of_their_dependencies(url: str) -> None:
    with Engine(url) as engine:
        handle = engine.start(etl.options(workflow_id="x"), source="to be or not")
        assert handle.result() == 45
        checkpoints = engine.show("x").checkpoints
        assert sorted(each.name for each in checkpoints) == ["double", "extract", "merge", "triple"]
        # the same graph is found again by its inputs
        assert engine.run(etl.options(workflow_id="x"), source="to be or not") == 45


def test_async_engine_runs_a_sync_graph() -> None:
    assert asyncio.run(run_async(etl, source="a bb")) == 15


@pytest.mark.parametrize(
    ("in_stock", "expected"), [(True, ("shipped for 7", None)), (False, (None, -7))], ids=str
)
def test_async_graph_compensates_a_failure(url: str, in_stock: bool, expected: tuple[Any, Any]) -> None:
    assert asyncio.run(run_async(order, url, amount=7, in_stock=in_stock)) == expected


def test_structure_is_known_without_an_engine() -> None:
    assert etl.topological_order == ["extract", "double", "triple", "merge"]
    assert etl.levels == [["extract"], ["double", "triple"], ["merge"]]
    assert (etl.roots, etl.leaves) == (["extract"], ["merge"])
    assert etl.dependencies("merge") == ["double", "triple"]
    assert etl.critical_path in (["extract", "double", "merge"], ["extract", "triple", "merge"])
    with pytest.raises(InvalidArgument, match="has no task 'nothing'"):
        etl.dependencies("nothing")


def test_task_is_a_plain_function_elsewhere() -> None:
    assert merge([1], [2]) == 3
    assert etl(source="a bb") == 15


def test_independent_sync_tasks_run_concurrently() -> None:
    graph = Graph("concurrent")
    barrier = threading.Barrier(8, timeout=60)
    for n in range(8):

        @graph.task(name=f"t{n}")
        def wait(start: int, n: int = n) -> int:
            barrier.wait()
            return start + n

    assert run_sync(graph, start=1) == {f"t{n}": 1 + n for n in range(8)}


@pytest.mark.parametrize("concurrency", [1, 2, 3])
def test_concurrency_is_limited(concurrency: int) -> None:
    graph = Graph(f"limited to {concurrency}", concurrency=concurrency)
    running, most = 0, 0
    lock = threading.Lock()
    for n in range(12):

        @graph.task(name=f"t{n}")
        def count() -> None:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            for _ in range(20_000):
                pass
            with lock:
                running -= 1

    run_sync(graph)
    assert 1 <= most <= concurrency


def test_failure_skips_dependents_and_keeps_its_class() -> None:
    graph, ran = Graph("failing"), []

    @graph.task
    def bad() -> int:
        raise KeyError("no such row")

    @graph.task
    def dependent(bad: int) -> None:
        ran.append("dependent")

    @graph.task
    def independent() -> None:
        ran.append("independent")

    with pytest.raises(KeyError, match="no such row") as raised:
        run_sync(graph)
    assert ran == ["independent"]
    assert "task 'bad' of graph 'failing' failed" in raised.value.__notes__


def test_rules_choose_the_tasks_that_run() -> None:
    graph = Graph("rules")

    @graph.task
    def good() -> None: ...

    @graph.task(may_fail=True)
    def bad() -> None:
        raise ValueError("no")

    @graph.task(after=bad)
    def unwanted() -> None: ...

    for name, rule in {
        "any": any_success(),
        "one failed": one_failed(),
        "none failed": none_failed(),
        "skipped": skipped("unwanted"),
        "not": ~succeeded(good),
        "either": succeeded("bad") | failed("bad"),
    }.items():

        @graph.task(name=name, after=[good, bad], when=rule)
        def runs(name: str = name) -> str:
            return name

    found = run_sync(graph)
    assert found == {name: name for name in ("any", "one failed", "skipped", "either")}


def test_graph_is_a_child_of_a_workflow() -> None:
    @workflow(name="runs a graph")
    def parent(source: str) -> int:
        return etl(source=source) + 1

    with Engine("memory:") as engine:
        assert engine.run(parent, "a bb") == 16


def test_resume_repeats_only_the_failed_task(url: str) -> None:
    graph, calls = Graph("resumed"), []

    @graph.task
    def first() -> int:
        calls.append("first")
        return 1

    @graph.task
    def second(first: int) -> int:
        calls.append("second")
        if calls.count("second") == 1:
            raise ValueError("not yet")
        return first + 1

    with Engine(url) as engine:
        handle = engine.start(graph.options(workflow_id="x"))
        with pytest.raises(ValueError, match="not yet"):
            handle.result()
        engine.resume("x")
        assert engine.get("x", graph).result() == 2
    assert calls == ["first", "second", "second"]


def test_graph_continues_after_its_engine_has_closed(tmp_path: pathlib.Path) -> None:
    graph = Graph("continued", concurrency=2)
    bodies: list[str] = []
    release = threading.Event()
    for n in range(5):

        @graph.task(name=f"t{n}")
        def work(n: int = n) -> int:
            bodies.append(f"t{n}")
            return n

    @graph.task
    def last(t0: int, t1: int, t2: int, t3: int, t4: int) -> int:
        bodies.append("last")
        release.wait(60)
        return t0 + t1 + t2 + t3 + t4

    url = f"sqlite:{tmp_path}/a.db"
    with Engine(url) as engine:
        engine.start(graph.options(workflow_id="x"))
        while "last" not in bodies:
            pass
        engine.close(0)
    release.set()
    with Engine(url) as engine:
        assert engine.get("x", graph).result() == 10
    assert sorted(bodies) == ["last", "last", "t0", "t1", "t2", "t3", "t4"]


def wrong_graphs() -> dict[str, tuple[Any, str]]:
    """Returns functions that make wrong graphs, each with a part of the error."""

    def unknown(graph: Graph) -> None:
        @graph.task
        def extract() -> None: ...

        @graph.task(after="extrat")
        def load() -> None: ...

    def cycle(graph: Graph) -> None:
        @graph.task(after="c")
        def a() -> None: ...

        @graph.task
        def b(a: None) -> None: ...

        @graph.task
        def c(b: None) -> None: ...

    def itself(graph: Graph) -> None:
        @graph.task
        def a(a: None) -> None: ...

    def duplicate(graph: Graph) -> None:
        graph.task(name="a")(lambda: None)
        graph.task(name="a")(lambda: None)

    def rule_about_unknown(graph: Graph) -> None:
        @graph.task(when=failed("ship"))
        def refund() -> None: ...

    def never(graph: Graph) -> None:
        @graph.task(when=one_failed())
        def alone() -> None: ...

    def missing_value(graph: Graph) -> None:
        @graph.task
        def a() -> None: ...

        @graph.task(when=all_done())
        def b(a: None) -> None: ...

    def many_values(graph: Graph) -> None:
        @graph.task
        def a(*values: int) -> None: ...

    def nul(graph: Graph) -> None:
        graph.task(name="a\0b")(lambda: None)

    def no_rule(graph: Graph) -> None:
        graph.task(when="all_done")(lambda: None)  # type: ignore[call-overload]

    def foreign(graph: Graph) -> None:
        graph.task(after=[extract])(lambda: None)

    def no_task(graph: Graph) -> None:
        graph.task(after=[step(lambda: None)])(lambda: None)  # type: ignore[list-item]

    return {
        "unknown": (unknown, 'task "load" depends on "extrat".* did you mean "extract"'),
        "cycle": (cycle, "in a cycle: .* -> .* -> .* -> "),
        "itself": (itself, "in a cycle: a -> a;"),
        "duplicate": (duplicate, "has two tasks named 'a'"),
        "rule about unknown": (rule_about_unknown, 'task "refund" has a rule about "ship", which is no task'),
        "never": (never, 'task "alone" never runs'),
        "missing value": (missing_value, "task 'b' .* takes the value of 'a', which may be missing"),
        "many values": (many_values, "has the parameter \\*values"),
        "nul": (nul, "must consist of printable characters"),
        "no rule": (no_rule, "when is 'all_done', and must be a rule"),
        "foreign": (foreign, "is no task of this graph"),
        "no task": (no_task, "is neither a task nor its name"),
    }


@pytest.mark.parametrize("wrong", wrong_graphs())
def test_wrong_graph_is_rejected_before_anything_runs(wrong: str) -> None:
    declare, message = wrong_graphs()[wrong]
    graph = Graph(f"wrong {wrong}")
    try:
        with pytest.raises(InvalidArgument, match=message):
            declare(graph)
            graph.validate()
    finally:
        # a wrong graph would be an error of every engine that opens later
        forget(graph)


def test_wrong_graph_keeps_an_engine_from_opening() -> None:
    graph = Graph("wrong at open")
    graph.task(after="nothing")(lambda: None)
    try:
        with pytest.raises(InvalidArgument, match='"wrong at open".*depends on "nothing"'):
            Engine("memory:")
    finally:
        forget(graph)


@pytest.mark.parametrize("concurrency", [0, -1, 1.5, True])
def test_wrong_concurrency_is_rejected(concurrency: Any) -> None:
    with pytest.raises(InvalidArgument, match="concurrency is"):
        Graph("wrong concurrency", concurrency=concurrency)


def test_complete_graph_takes_no_further_task() -> None:
    graph = Graph("complete")
    graph.task(name="a")(lambda: None)
    graph.validate()
    with pytest.raises(InvalidArgument, match="takes no further task 'b', because it is in use"):
        graph.task(name="b")(lambda: None)


def test_unknown_and_missing_inputs_are_rejected() -> None:
    with Engine("memory:") as engine:
        for inputs in ({}, {"source": "a", "target": "b"}):
            with pytest.raises((InvalidArgument, TypeError), match="source|target"):
                engine.run(etl, **inputs)


def forget(graph: Graph) -> None:
    from stepfast._workflow import registry

    del registry._registered[graph.name], registry._completions[graph.name]
