"""Acceptance tests of graphs, through the public API only: what users of task-graph engines do first."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from graphs import forget

from stepfast import (
    AsyncEngine,
    Client,
    Context,
    Engine,
    Graph,
    InvalidArgument,
    RemoteWorkflow,
    WorkflowCancelled,
    WorkflowParked,
    current,
    wait_until,
    workflow,
)
from stepfast.rules import all_done, any_success, failed, none_failed, one_failed, skipped, succeeded, value


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


def test_rules_name_skipped_tasks_and_combine(url: str) -> None:
    graph = Graph("accept_rules_combined")

    @graph.task(may_fail=True)
    def check(rows: int) -> int:
        if rows < 0:
            raise ValueError("negative")
        return rows

    @graph.task(when=value(check) > 10)
    def archive() -> str:
        return "archived"

    @graph.task(when=skipped(archive) & ~failed(check))
    def small() -> str:
        return "small"

    @graph.task(after=[check, archive], when=one_failed() | succeeded(archive))
    def alert() -> str:
        return "alert"

    assert outcome(graph, url, rows=5) == {"small": "small"}
    assert outcome(graph, url, rows=50) == {"alert": "alert"}
    assert outcome(graph, url, rows=-5) == {"alert": "alert"}


def versioned(
    *,
    factor: int,
    has_new_task: bool = False,
    depends: bool = True,
    scale_name: str = "scale",
    gate: bool = False,
) -> Graph:
    """Returns a graph as one version of a program declares it. The last task fails in the first version."""
    graph = Graph("accept_version")

    @graph.task
    def load() -> int:
        return 7

    if gate:
        graph.task(lambda: None, name="gate")

    @graph.task(name=scale_name, after=(["gate"] if gate else []) + ([load.name] if depends else []))
    def scale() -> int:
        return 2

    @graph.task(after=scale_name)
    def total(load: int) -> int:
        if factor == 0:
            raise ValueError("not yet")
        return load * 2 * factor

    if has_new_task:

        @graph.task
        def report(total: int) -> str:
            return f"total {total}"

    return graph


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 42),
        ({"has_new_task": True}, "total 42"),
        ({"depends": False}, 'task "scale" was recorded with other dependencies'),
        ({"scale_name": "scaling"}, 'task "scale" is recorded, but is not in the graph'),
        ({"gate": True}, 'task "scale" is recorded.*waits for task "gate"'),
    ],
    ids=["new body", "new task", "other dependencies", "other name", "new dependency"],
)
def test_execution_continues_in_a_new_version_that_fits(
    url: str, changes: dict[str, Any], expected: Any
) -> None:
    with pytest.raises(ValueError, match="not yet"):
        outcome(versioned(factor=0).options(workflow_id="x"), url)  # type: ignore[arg-type]
    versioned(factor=3, **changes)
    with Engine(url) as engine:
        assert engine.resume("x")
        handle = engine.get("x")
        if isinstance(expected, str) and "scale" in expected:
            with pytest.raises(WorkflowParked, match=expected):
                handle.result()
        else:
            assert handle.result() == expected


def test_graphs_are_found_by_name(url: str) -> None:
    graph = Graph("accept_by_name")

    @graph.task
    def double(number: int) -> int:
        return 2 * number

    with Engine(url) as engine, Client(url) as client:
        assert client.run(RemoteWorkflow("accept_by_name"), number=4) == 8
        assert any("accept_by_name" in worker.workflows for worker in engine.workers().workers)

    with pytest.raises(InvalidArgument, match="two workflows are called 'accept_by_name'"):

        @workflow(name="accept_by_name")
        def other() -> None: ...


def test_all_failures_of_parallel_tasks_are_recorded_and_repeated(url: str) -> None:
    graph = Graph("accept_failures")
    is_up = False
    bodies: list[str] = []

    def begin(task: str) -> str:
        bodies.append(task)
        if task != "good" and not is_up:
            raise ConnectionError(f"{task} is down")
        return task

    for name in ("first", "second", "good"):
        graph.task(name=name)(partial(begin, name))

    @graph.task(after="good")
    def behind() -> str:
        return begin("good")

    @graph.task
    def joined(first: str, second: str, behind: str) -> list[str]:
        return [first, second, behind]

    with Engine(url) as engine:
        handle = engine.start(graph.options(workflow_id="x"))
        with pytest.raises(ConnectionError, match="first is down") as raised:
            handle.result()
        assert raised.value.__notes__ == ["task 'first' of graph 'accept_failures' failed"]
        recorded = {each.name: each.kind for each in engine.show("x").checkpoints}
        assert recorded == {"first": "failed", "second": "failed", "good": "step", "behind": "step"}
        is_up = True
        bodies.clear()
        assert engine.resume("x")
        assert engine.get("x").result() == ["first", "second", "good"]
    assert sorted(bodies) == ["first", "second"]


def two_of_one_name(graph: Graph) -> None:
    for _ in range(2):
        graph.task(name="load")(lambda: None)


def unknown_dependency(graph: Graph) -> None:
    graph.task(name="load", after="lod")(lambda: None)


def unknown_task_of_a_rule(graph: Graph) -> None:
    graph.task(name="load", when=failed("lod"))(lambda: None)


def unknown_list(graph: Graph) -> None:
    graph.task(name="load", map_over="items")(lambda items: None)  # pyright: ignore[reportUnknownLambdaType]


def tasks_in_a_cycle(graph: Graph) -> None:
    graph.task(name="load", after="lod")(lambda: None)
    graph.task(name="lod", after="load")(lambda: None)


def wrong_type(graph: Graph) -> None:
    @graph.task
    def size() -> int:
        return 1

    @graph.task
    def load(size: str) -> None: ...


@pytest.mark.parametrize(
    ("declare", "cause"),
    [
        (two_of_one_name, "has two tasks named 'load'"),
        (unknown_dependency, 'depends on "lod", which is no task'),
        (unknown_task_of_a_rule, 'has a rule about "lod", which is no task'),
        (unknown_list, "is mapped over 'items', which is no task"),
        (tasks_in_a_cycle, "depend on each other in a cycle"),
        (wrong_type, "takes the value of 'size' as str, but 'size' returns int"),
    ],
)
def test_wrong_graph_names_graph_task_and_cause(declare: Callable[[Graph], None], cause: str) -> None:
    graph = Graph("accept_wrong")
    try:
        with pytest.raises(InvalidArgument, match=cause) as raised:
            declare(graph)
            graph.validate()
        assert "accept_wrong" in str(raised.value)
        assert "load" in str(raised.value)
    finally:
        forget(graph)


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


def test_outcomes_outlive_the_engine(url: str) -> None:
    graph = Graph("accept_outcomes")

    @graph.task
    def invert(number: int) -> float:
        return 1 / number

    with Engine(url) as engine:
        for number in (2, 0):
            engine.start(graph.options(workflow_id=f"n{number}"), number=number)
    with Engine(url) as engine:
        assert engine.get("n2").result() == 0.5
        with pytest.raises(ZeroDivisionError):
            engine.get("n0").result()
        # the same id and the same input start nothing
        assert engine.run(graph.options(workflow_id="n2"), number=2) == 0.5
        assert engine.count(workflow="accept_outcomes") == 2


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


@dataclass
class Order:
    amount: int
    items: list[str]


def test_graph_has_typed_inputs(url: str) -> None:
    graph = Graph("accept_inputs")

    @graph.task
    def total(order: Order, discount: float = 0.0) -> float:
        return order.amount * (1 - discount)

    @graph.task
    def label(order: Order, total: float) -> tuple[Order, str]:
        return order, f"{', '.join(order.items)}: {total}"

    order = Order(8, ["tea", "cup"])
    assert outcome(graph, url, order=order, discount=0.5) == (order, "tea, cup: 4.0")
    assert outcome(graph, url, order=order)[1] == "tea, cup: 8.0"
    with Engine(url) as engine:
        # Python 3.13 adds "keyword-only"
        missing = "graph 'accept_inputs'.* missing a required (keyword-only )?argument: 'order'"
        with pytest.raises(TypeError, match=missing):
            engine.run(graph)
        with pytest.raises(TypeError, match="graph 'accept_inputs'.* unexpected .* 'rebate'"):
            engine.run(graph, order=order, rebate=1)


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


def test_callbacks_take_the_outcomes_of_tasks(url: str) -> None:
    graph = Graph("accept_callbacks")
    calls: list[tuple[str, Any]] = []

    def succeeded(task: str, value: Any) -> None:
        calls.append((task, value))

    def failed(task: str, error: Exception) -> None:
        calls.append((task, str(error)))
        raise AssertionError("an error of a callback changes nothing")

    @graph.task(on_success=succeeded, on_failure=failed)
    def load() -> int:
        return 7

    @graph.task(retries=2, backoff=0, may_fail=True, on_success=succeeded, on_failure=failed)
    def check(load: int) -> None:
        raise ValueError(f"{load} is odd")

    @graph.task(after=check, when=all_done())
    def close() -> list[tuple[str, Any]]:
        return calls

    assert outcome(graph, url) == [("load", 7), ("check", "7 is odd")]


def test_task_waits_for_a_condition(url: str) -> None:
    checks: list[str] = []

    def has_arrived(path: str) -> bool:
        checks.append(path)
        return len(checks) == 3

    @workflow(name="accept_wait")
    def arrival(path: str) -> str:
        wait_until(partial(has_arrived, path), every=0.01)
        return path

    graph = Graph("accept_deferred")
    graph.include(arrival, name="arrived")

    @graph.task
    def length(arrived: str) -> int:
        return len(arrived)

    assert outcome(graph, url, path="a.csv") == 5
    assert checks == ["a.csv"] * 3
