"""Acceptance tests of graphs, through the public API only: what users of task-graph engines do first."""

import asyncio
import dataclasses
from typing import Any

import pytest

from stepfast import AsyncEngine, Context, Engine, Graph, InvalidArgument, WorkflowCancelled, current
from stepfast.rules import all_done, any_success, failed, none_failed, succeeded, value


def outcome(graph: Graph, url: str, **inputs: Any) -> Any:
    with Engine(url) as engine:
        return engine.run(graph, **inputs)


def test_single_task_returns_its_value(url: str) -> None:
    graph = Graph("accept_single")

    @graph.task
    def greet(name: str = "you") -> str:
        return f"hello {name}"

    assert outcome(graph, url) == "hello you"
    assert outcome(graph, url, name="Ann") == "hello Ann"


def test_single_task_writes_the_context(url: str) -> None:
    graph = Graph("accept_context")

    @graph.task
    def greet(context: Context) -> None:
        context.insert("greeting", f"hello {context.get('name', 'you')}")

    assert outcome(graph, url) == {"greeting": "hello you"}
    assert outcome(graph, url, context={"name": "Ann"})["greeting"] == "hello Ann"


def test_topology_follows_the_functions(url: str) -> None:
    graph = Graph("accept_topology")

    @graph.task
    def a() -> int:
        return 1

    @graph.task
    def b(a: int) -> int:
        return a + 1

    @graph.task
    def c(a: int) -> int:
        return a + 2

    @graph.task
    def d(b: int, c: int) -> int:
        return b * c

    assert graph.topological_order == ["a", "b", "c", "d"]
    assert (graph.levels, graph.roots, graph.leaves) == ([["a"], ["b", "c"], ["d"]], ["a"], ["d"])
    assert outcome(graph, url) == 6


@pytest.mark.parametrize("length", [2, 50])
def test_chain_of_tasks_passes_values_on(url: str, length: int) -> None:
    graph = Graph(f"accept_chain_{length}")
    graph.task(name="t0")(lambda: 0)
    for number in range(1, length):

        @graph.task(name=f"t{number}", after=f"t{number - 1}")
        def add(context: Context, number: int = number) -> None:
            context["sum"] = context.get("sum", 0) + number

    assert outcome(graph, url) == {"sum": length * (length - 1) // 2}


def test_diamonds_in_a_row_join_all_values(url: str) -> None:
    graph = Graph("accept_diamonds")

    @graph.task
    def start(context: Context) -> None:
        context["all"] = ["start"]

    before = "start"
    for number in range(5):
        for side in ("left", "right"):

            @graph.task(name=f"{side}{number}", after=before)
            def write(context: Context, key: str = f"{side}{number}") -> None:
                context[key] = len(context["all"])

        @graph.task(name=f"join{number}", after=[f"left{number}", f"right{number}"])
        def join(context: Context, number: int = number) -> None:
            context["all"] = [*context["all"], context[f"left{number}"] + context[f"right{number}"]]

        before = f"join{number}"
    assert outcome(graph, url)["all"] == ["start", 2, 4, 6, 8, 10]


def test_failure_names_task_graph_and_cause(url: str) -> None:
    graph = Graph("accept_failure")

    @graph.task
    def divide(number: int) -> float:
        return 1 / number

    @graph.task
    def after(divide: float) -> float:
        raise AssertionError("skipped")

    with pytest.raises(ZeroDivisionError) as raised:
        outcome(graph, url, number=0)
    assert raised.value.__notes__ == ["task 'divide' of graph 'accept_failure' failed"]
    assert outcome_status(graph, url, number=0) == "failed"


def outcome_status(graph: Graph, url: str, **inputs: Any) -> str:
    with Engine(url) as engine:
        handle = engine.start(graph, **inputs)
        with pytest.raises(Exception, match="division"):
            handle.result()
        return engine.show(handle.workflow_id).execution.status


def test_value_that_cannot_be_stored_names_the_task(url: str) -> None:
    graph = Graph("accept_unstorable")

    @graph.task
    def opens() -> Any:
        return iter([1])

    with pytest.raises(Exception, match="list_iterator") as raised:
        outcome(graph, url)
    assert "task 'opens' of graph 'accept_unstorable' failed" in raised.value.__notes__


@pytest.mark.parametrize(("retries", "expected"), [(2, 3), (5, 3)])
def test_retries_end_with_the_first_success(url: str, retries: int, expected: int) -> None:
    graph = Graph(f"accept_retries_{retries}")
    attempts: list[int] = []

    @graph.task(retries=retries, backoff=0.001, backoff_factor=1)
    def flaky() -> int:
        attempts.append(1)
        if len(attempts) < 3:
            raise ConnectionError
        return len(attempts)

    assert outcome(graph, url) == expected


class Busy(Exception):
    pass


@pytest.mark.parametrize(
    ("options", "attempts"),
    [
        ({"retries": 0}, 1),
        ({"retries": 3}, 4),
        ({"retries": 3, "retry_on": Busy}, 4),
        ({"retries": 3, "retry_on": ConnectionError}, 1),
        ({"retries": 3, "retry_if": lambda error: "again" in str(error)}, 1),
        ({"retries": 3, "retry_if": lambda error: "busy" in str(error)}, 4),
    ],
    ids=["never", "all", "type", "other type", "other pattern", "pattern"],
)
def test_retry_conditions(url: str, options: dict[str, Any], attempts: int) -> None:
    graph = Graph(f"accept_conditions_{attempts}_{'_'.join(options)}_{len(str(options))}")
    seen: list[int] = []

    @graph.task(backoff=0, **options)
    def fails() -> None:
        seen.append(1)
        raise Busy("busy")

    with pytest.raises(Busy):
        outcome(graph, url)
    assert len(seen) == attempts


def test_rules_route_failures_and_values(url: str) -> None:
    graph = Graph("accept_rules")

    @graph.task
    def load(rows: int) -> int:
        return rows

    @graph.task(may_fail=True)
    def check(load: int) -> int:
        if load < 0:
            raise ValueError("negative")
        return load

    @graph.task(when=failed(check) & succeeded(load))
    def repair(load: int) -> int:
        return -load

    @graph.task(when=value(load) > 100)
    def archive(load: int) -> str:
        return "archived"

    @graph.task(after=[check, repair], when=any_success())
    def publish(check: int | None = None, repair: int | None = None) -> int | None:
        return repair if check is None else check

    @graph.task(after=[publish, archive], when=none_failed())
    def close() -> str:
        return "closed"

    @graph.task(after=[close, publish], when=all_done())
    def report(publish: int | None = None, archive: str | None = None) -> tuple[int | None, str | None]:
        return publish, archive

    assert outcome(graph, url, rows=5) == (5, None)
    assert outcome(graph, url, rows=-5) == (5, None)
    assert outcome(graph, url, rows=500) == (500, "archived")


def test_two_graphs_have_tasks_of_one_name(url: str) -> None:
    graphs = [Graph(f"accept_twins_{number}") for number in range(2)]
    for number, graph in enumerate(graphs):
        graph.task(name="task")(lambda number=number: number)
    with Engine(url) as engine:
        assert [engine.run(graph) for graph in graphs] == [0, 1]


def test_many_executions_run_at_once(url: str) -> None:
    graph = Graph("accept_many")

    @graph.task
    async def double(number: int) -> int:
        return 2 * number

    async def main() -> list[int]:
        async with AsyncEngine(url) as engine:
            results: list[int] = await asyncio.gather(*(engine.run(graph, number=n) for n in range(100)))
            return results

    assert asyncio.run(main()) == [2 * n for n in range(100)]


def test_execution_is_listed_cancelled_and_resumed(url: str) -> None:
    graph = Graph("accept_control")
    may_end = False

    @graph.task
    async def first() -> int:
        return 1

    @graph.task
    async def second(first: int) -> int:
        while not may_end:
            await asyncio.sleep(0.001)
        return first + 1

    async def main() -> int:
        nonlocal may_end
        async with AsyncEngine(url) as engine:
            handle = await engine.start(graph.options(workflow_id="x"))
            assert [each.workflow for each in await engine.list(workflow="accept_control")] == [
                "accept_control"
            ]
            await handle.cancel()
            with pytest.raises(WorkflowCancelled):
                await handle.result()
            may_end = True
            assert await engine.resume("x")
            result: int = await (await engine.get("x")).result()
            return result

    assert asyncio.run(main()) == 2


def test_graph_has_typed_inputs(url: str) -> None:
    @dataclasses.dataclass
    class Order:
        amount: int

    graph = Graph("accept_inputs")

    @graph.task
    def total(order: Any, discount: float = 0.0) -> float:
        return order["amount"] * (1 - discount)

    assert outcome(graph, url, order=dataclasses.asdict(Order(8)), discount=0.5) == 4.0
    with Engine(url) as engine, pytest.raises((InvalidArgument, TypeError), match="order"):
        engine.run(graph)


def test_sync_and_async_tasks_mix(url: str) -> None:
    graph = Graph("accept_async")

    @graph.task
    async def fetch() -> list[int]:
        await asyncio.sleep(0)
        return [1, 2]

    @graph.task
    def total(fetch: list[int]) -> int:
        return sum(fetch)

    async def main() -> int:
        async with AsyncEngine(url) as engine:
            result: int = await engine.run(graph)
            return result

    assert asyncio.run(main()) == 3


def test_task_reads_its_execution(url: str) -> None:
    graph = Graph("accept_current")

    @graph.task(retries=1, backoff=0)
    def where() -> tuple[str, int]:
        if current().attempt == 1:
            raise ValueError("once")
        return current().workflow_id, current().attempt

    assert outcome(graph.options(workflow_id="x"), url) == ("x", 2)  # type: ignore[arg-type]


def test_task_runs_another_graph(url: str) -> None:
    inner = Graph("accept_inner")

    @inner.task
    def square(number: int) -> int:
        return number**2

    graph = Graph("accept_outer")

    @graph.task
    def number() -> int:
        return 7

    graph.include(inner)

    @graph.task
    def last(accept_inner: int) -> int:
        return accept_inner + 1

    assert outcome(graph, url) == 50
