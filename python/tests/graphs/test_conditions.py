"""Rules with conditions on the values of tasks."""

from dataclasses import dataclass
from typing import Any

import pytest
from graphs import forget

from stepfast import Engine, Graph, InvalidArgument
from stepfast.rules import Rule, all_done, value


@dataclass
class Stats:
    rows: int
    name: str = "a"


def outcome(given: Any, rule: Rule) -> bool:
    """Returns whether a task with the rule runs beside a task `t` that returns `given`."""
    graph = Graph("conditions")

    @graph.task
    def t() -> Any:
        return given

    @graph.task(when=rule)
    def runs(t: Any = None) -> bool:
        return True

    @graph.task(when=all_done())
    def answer(runs: bool = False) -> bool:
        return runs

    with Engine("memory:") as engine:
        result: bool = engine.run(graph)
    # a plain call evaluates the same rule
    assert graph() is result
    return result


T = value("t")


@pytest.mark.parametrize(
    ("given", "rule", "expected"),
    [
        (11, T > 10, True),
        (10, T > 10, False),
        (10, T >= 10, True),
        (1.5, T < 2, True),
        (2, T <= 1, False),
        ("a", T == "a", True),
        ("a", T != "a", False),
        (None, T == None, True),  # noqa: E711 # makes a rule
        ("text", T > 10, False),
        ("text", T != 10, True),
        ({"rows": 0}, T["rows"] == 0, True),
        ("urgent", T.contains("urge"), True),
        ([1, 2], T.contains(2), True),
        ([1, 2], T.contains("2"), False),
        ({"a": None}, T.contains("a"), True),
        (7, T.contains(7), False),
        ("7", T.contains(7), False),
        (None, T.exists(), True),
        ({"a": None}, T["a"].exists(), True),
        ({"a": None}, T["b"].exists(), False),
        ({"rows": {"bad": 3}}, T["rows"]["bad"] > 2, True),
        ({}, T["rows"] == 0, False),
        ({}, T["rows"] != 0, False),
        (Stats(rows=3), T["rows"] == 3, True),
        (Stats(rows=3), (T["rows"] == 3) & (T["name"] == "b"), False),
        (Stats(rows=3), (T["rows"] == 4) | ~(T["name"] == "b"), True),
        (float("nan"), float("nan") != T, True),
    ],
    ids=str,
)
def test_condition_decides_whether_the_task_runs(given: Any, rule: Rule, expected: bool) -> None:
    assert outcome(given, rule) is expected


def test_condition_does_not_hold_without_a_value() -> None:
    graph = Graph("no_value")

    @graph.task(may_fail=True)
    def t() -> int:
        raise ValueError

    @graph.task(when=T != 0)
    def differs() -> str:
        return "differs"

    @graph.task(when=~(T == 0))
    def equals_not() -> str:
        return "equals not"

    with Engine("memory:") as engine:
        assert engine.run(graph) == {"equals_not": "equals not"}


def test_replay_decides_like_the_first_run(url: str) -> None:
    is_broken: list[bool] = [True]
    graph = Graph("replayed_condition")

    @graph.task
    def count(number: int) -> int:
        return number

    @graph.task(when=value(count) > 10)
    def large(count: int) -> str:
        if is_broken:
            raise ValueError("broken")
        return f"large {count}"

    @graph.task(when=value(count) <= 10)
    def small(count: int) -> str:
        return f"small {count}"

    with Engine(url) as engine:
        assert engine.run(graph, number=10) == {"small": "small 10"}
        handle = engine.start(graph, number=11)
        with pytest.raises(ValueError, match="broken"):
            handle.result()
        is_broken.clear()
        handle.resume()
        assert engine.get(handle.workflow_id).result() == {"large": "large 11"}


def test_wrong_conditions_are_rejected() -> None:
    with pytest.raises(
        InvalidArgument, match="compared with \\[1\\], and must be compared with None, a bool"
    ):
        T.__eq__([1])
    with pytest.raises(InvalidArgument, match="does not fit into 64 bits"):
        T.__gt__(2**63)
    with pytest.raises(InvalidArgument, match=r"value\(\"t\"\) is no rule yet"):
        bool(T)
    with pytest.raises(InvalidArgument, match=r"value\(\"t\"\) > 1 has no truth value"):
        assert (T > 1) and (T < 3)
    with pytest.raises(InvalidArgument, match="has no truth value"):
        assert 1 < T < 3
    with pytest.raises(InvalidArgument, match="1 is no name of a field"):
        T[1]  # type: ignore[index]
    with pytest.raises(InvalidArgument, match="1 is no task"):
        value(1)
    graph = Graph("unknown_condition")

    @graph.task(when=value("nothing") > 1)
    def task() -> None: ...

    with pytest.raises(InvalidArgument, match='task "task" has a rule about "nothing"'):
        graph.validate()
    forget(graph)
