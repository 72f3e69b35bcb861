"""Graphs: values, rules, failures, limits and restarts, sync and async, and the errors of wrong graphs."""

import asyncio
import pathlib
import threading
from typing import Any

import pytest
from graphs import forget

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


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_resume_repeats_a_failure_before_the_ends_of_other_tasks(url: str, is_async: bool) -> None:
    graph, calls = Graph(f"resumed in the middle {is_async}", concurrency=1), list[str]()

    def call(name: str) -> str:
        calls.append(name)
        if name in ("bad", "worse") and calls.count(name) < 3:
            raise ValueError(f"{name} {calls.count(name)}")
        return name

    def declare(name: str, **options: Any) -> None:
        if is_async:

            @graph.task(name=name, **options)
            async def _() -> str:
                return call(name)
        else:

            @graph.task(name=name, **options)
            def _() -> str:
                return call(name)

    for name in ("bad", "good", "worse", "better"):
        declare(name)
    declare("last", after=["bad", "good", "worse", "better"])

    async def run() -> None:
        async with AsyncEngine(url) as engine:
            handle = await engine.start(graph.options(workflow_id="x"))
            for attempt in (1, 2):
                with pytest.raises(ValueError, match=f"bad {attempt}"):
                    await handle.result()
                await engine.resume("x")
                handle = await engine.get("x", graph)
            assert await handle.result() == "last"

    if is_async:
        asyncio.run(run())
    else:
        with Engine(url) as engine:
            handle = engine.start(graph.options(workflow_id="x"))
            for attempt in (1, 2):
                with pytest.raises(ValueError, match=f"bad {attempt}"):
                    handle.result()
                engine.resume("x")
                handle = engine.get("x", graph)
            assert handle.result() == "last"
    assert {name: calls.count(name) for name in set(calls)} == {
        "bad": 3,
        "good": 1,
        "worse": 3,
        "better": 1,
        "last": 1,
    }


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_repeated_items_hold_back_no_recorded_item(url: str, is_async: bool) -> None:
    graph, calls = Graph(f"resumed items {is_async}"), list[int]()

    @graph.task
    def numbers() -> list[int]:
        return list(range(6))

    def call(number: int) -> int:
        calls.append(number)
        # all items but the last fail in the first run
        if len(calls) < 6:
            raise ValueError("not yet")
        return number

    if is_async:

        @graph.task(name="same", map_over=numbers, max_items=1)
        async def _(numbers: int) -> int:
            return call(numbers)
    else:

        @graph.task(name="same", map_over=numbers, max_items=1)
        def _(numbers: int) -> int:
            return call(numbers)

    async def run() -> None:
        async with AsyncEngine(url) as engine:
            handle = await engine.start(graph.options(workflow_id="x"))
            with pytest.raises(ValueError, match="not yet"):
                await handle.result()
            await engine.resume("x")
            assert await (await engine.get("x", graph)).result() == list(range(6))

    if is_async:
        asyncio.run(run())
    else:
        with Engine(url) as engine:
            handle = engine.start(graph.options(workflow_id="x"))
            with pytest.raises(ValueError, match="not yet"):
                handle.result()
            engine.resume("x")
            assert engine.get("x", graph).result() == list(range(6))
    assert calls == [*range(6), *range(5)]


def test_resume_keeps_a_failure_that_was_compensated(url: str) -> None:
    graph, calls = Graph("resumed after compensation"), list[str]()

    @graph.task
    def ship() -> None:
        calls.append("ship")
        raise ValueError("out of stock")

    @graph.task(when=failed(ship))
    def refund() -> None:
        calls.append("refund")

    with Engine(url) as engine:
        handle = engine.start(graph.options(workflow_id="x"))
        for _ in range(2):
            with pytest.raises(ValueError, match="out of stock"):
                handle.result()
            engine.resume("x")
            handle = engine.get("x", graph)
        with pytest.raises(ValueError, match="out of stock"):
            handle.result()
    assert calls == ["ship", "refund"]


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


def mapped_graph(name: str, *, is_async: bool, max_items: int | None = None) -> tuple[Graph, list[int]]:
    """Returns a graph that squares numbers, of which 3 fails if the input says so, and the begun items."""
    graph, begun = Graph(name), list[int]()

    @graph.task
    def numbers(count: int) -> list[int]:
        return list(range(count))

    def begin(number: int, fails: bool) -> int:
        begun.append(number)
        if fails and number == 3:
            raise ValueError("poison")
        return number * number

    if is_async:

        @graph.task(map_over=numbers, max_items=max_items, name="square")
        async def square(numbers: int, fails: bool = False) -> int:
            await asyncio.sleep(0)
            return begin(numbers, fails)
    else:

        @graph.task(map_over="numbers", max_items=max_items, name="square")
        def square_sync(numbers: int, fails: bool = False) -> int:
            return begin(numbers, fails)

    @graph.task
    def total(square: list[int]) -> tuple[int, list[int]]:
        return sum(square), square[-2:]

    return graph, begun


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("max_items", [None, 1, 7])
def test_task_is_mapped_over_items(url: str, is_async: bool, max_items: int | None) -> None:
    graph, begun = mapped_graph(f"mapped {is_async} {max_items}", is_async=is_async, max_items=max_items)
    for count in (0, 1, 50):
        del begun[:]
        squares = [number * number for number in range(count)]
        if is_async:
            assert asyncio.run(run_async(graph, url, count=count)) == (sum(squares), squares[-2:])
        else:
            assert run_sync(graph, url, count=count) == (sum(squares), squares[-2:])
        assert sorted(begun) == list(range(count))


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_failed_item_fails_its_task_after_the_others(is_async: bool) -> None:
    graph, begun = mapped_graph(f"poisoned {is_async}", is_async=is_async, max_items=2)
    with pytest.raises(ValueError, match="poison") as raised:
        if is_async:
            asyncio.run(run_async(graph, count=10, fails=True))
        else:
            run_sync(graph, count=10, fails=True)
    assert sorted(begun) == list(range(10))
    assert "item 4 of 10 of task 'square' failed" in raised.value.__notes__


def test_mapped_items_are_recorded_once_across_engines(tmp_path: pathlib.Path) -> None:
    graph = Graph("mapped across engines")
    bodies: list[int] = []
    release = threading.Event()

    @graph.task
    def numbers() -> list[int]:
        return list(range(100))

    @graph.task(map_over=numbers, max_items=5)
    def square(numbers: int) -> int:
        bodies.append(numbers)
        if numbers >= 50:
            release.wait(60)
        return numbers * numbers

    url = f"sqlite:{tmp_path}/a.db"
    with Engine(url) as engine:
        engine.start(graph.options(workflow_id="x"))
        while len(bodies) < 55:
            pass
        engine.close(0)
    release.set()
    with Engine(url) as engine:
        assert engine.get("x", graph).result() == [number * number for number in range(100)]
        assert len(engine.show("x").checkpoints) == 101
    assert sorted(bodies) == sorted([*range(100), *range(50, 55)])


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

    def mapped_without_parameter(graph: Graph) -> None:
        @graph.task
        def a() -> list[int]: ...

        @graph.task(map_over=a)
        def b() -> None: ...

    def items_without_map(graph: Graph) -> None:
        graph.task(max_items=3)(lambda: None)

    def mapped_over_unknown(graph: Graph) -> None:
        @graph.task(map_over="a")
        def b(a: int) -> None: ...

    def mapped_over_no_task(graph: Graph) -> None:
        graph.task(name="b", map_over=["a"])(lambda a: None)  # type: ignore[call-overload]

    def no_function(graph: Graph) -> None:
        graph.task(3)  # type: ignore[call-overload]

    def after_number(graph: Graph) -> None:
        graph.task(name="b", after=3)(lambda: None)  # type: ignore[call-overload]

    def only_by_position(graph: Graph) -> None:
        @graph.task
        def a(source: str, /) -> None: ...

    def no_items(graph: Graph) -> None:
        graph.task(map_over="a", max_items=0)(lambda a: None)  # pyright: ignore[reportUnknownLambdaType]

    return {
        "mapped without parameter": (mapped_without_parameter, "mapped over 'a', but has no parameter"),
        "mapped over unknown": (mapped_over_unknown, "task 'b' .* over 'a', which is no task of the graph"),
        "mapped over no task": (mapped_over_no_task, "map_over of task 'b' .* neither a task nor its name"),
        "items without map": (items_without_map, "max_items of task '<lambda>' .* is for tasks with"),
        "no items": (no_items, "max_items of task '<lambda>' .* is 0"),
        "no function": (no_function, "3 is no function, and cannot be made a task"),
        "after number": (after_number, "after of task 'b' .* has 3, which is neither a task nor its name"),
        "only by position": (only_by_position, "task 'a' .* the parameter source: str, .* leave out the /"),
        "unknown": (unknown, 'task "load" depends on "extrat".* did you mean "extract"'),
        "cycle": (cycle, "in a cycle: .* -> .* -> .* -> "),
        "itself": (itself, "in a cycle: a -> a;"),
        "duplicate": (duplicate, "has two tasks named 'a'"),
        "rule about unknown": (rule_about_unknown, 'task "refund" has a rule about "ship", which is no task'),
        "never": (never, 'task "alone" never runs'),
        "missing value": (missing_value, "task 'b' .* value of 'a', .* a=None, or add succeeded"),
        "many values": (many_values, "has the parameter \\*values"),
        "nul": (nul, "must consist of printable characters"),
        "no rule": (no_rule, "when of task '<lambda>' of graph 'wrong no rule' is 'all_done', and must be"),
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


def test_plain_call_checks_the_inputs() -> None:
    for inputs in ({}, {"source": "a", "target": "b"}):
        with pytest.raises(TypeError, match=r"the arguments do not fit graph 'etl'\(.*(source|target)"):
            etl(**inputs)
    with pytest.raises(TypeError, match="too many positional arguments"):
        etl("a")


def test_graph_that_was_replaced_is_named() -> None:
    first, second = Graph("replaced"), Graph("replaced")
    for number, graph in enumerate((first, second)):
        graph.task(name="answer")(lambda number=number: number)
    with Engine("memory:") as engine:
        assert engine.run(second) == 1
        with pytest.raises(InvalidArgument, match="<graph replaced> was replaced by another one of this"):
            engine.run(first)


def test_tree_shows_states_of_tasks_and_items(url: str) -> None:
    graph = Graph("tree")
    may_fail: list[str] = []

    @graph.task
    def items() -> list[int]:
        return [0, 1, 2]

    @graph.task(map_over=items, on_success=lambda value: None)
    def each(items: int) -> int:
        return items

    @graph.task(after=each)
    def fails() -> None:
        may_fail.append("")
        if len(may_fail) == 1:
            raise ValueError("once")

    @graph.task(after=fails)
    def last() -> None: ...

    assert graph.to_tree() == ("tree\n└─ items\n   └─ each\n      └─ fails\n         └─ last\n")
    with Engine(url) as engine:
        handle = engine.start(graph)
        with pytest.raises(ValueError, match="once"):
            handle.result()
        states = [
            line.split("  ") for line in graph.to_tree(engine.show(handle.workflow_id)).splitlines()[1:]
        ]
        found = [
            [part.strip("└─ ") for part in line if part.strip("└─ ") and " ms" not in part] for line in states
        ]
        assert found == [
            ["items", "succeeded"],
            ["each", "succeeded", "3 items"],
            ["fails", "failed", "ValueError('once')"],
            ["last", "skipped"],
        ]
        handle.resume()
        engine.get(handle.workflow_id).result()
        tree = graph.to_tree(engine.show(handle.workflow_id))
        assert tree.count("succeeded") == 4 and "failed" not in tree
