"""Races: the first of several calls wins, in every replay."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import stepfast
from stepfast import (
    Engine,
    InvalidArgument,
    Token,
    WorkflowCancelled,
    create_token,
    gather,
    get_event,
    race,
    receive,
    set_event,
    sleep,
    step,
    workflow,
)

#: The winners of each race that workflows have noted, over all their runs.
seen: defaultdict[Any, set[Any]] = defaultdict(set)


def note(key: Any, winner: Any) -> None:
    """Notes the winner of a race in this run. Real workflows must not call this."""
    seen[key].add(winner)


@pytest.fixture(autouse=True)
def no_winners() -> Iterator[None]:
    """Checks after each test that every race has ended in the same way in all runs."""
    seen.clear()
    yield
    assert all(len(winners) == 1 for winners in seen.values()), seen


@pytest.fixture(params=[5.0, 0.001], ids=["stays", "suspends"])
def suspend_after(request: pytest.FixtureRequest) -> float:
    """The time after which executions are suspended: never in a fast test, or in each wait."""
    return float(request.param)


@step
def double_in_race(n: int) -> int:
    return 2 * n


@step
def refuse_in_race(n: int) -> int:
    raise ValueError(f"refused {n}")


@workflow
def child_in_race(n: int) -> int:
    return double_in_race(n) + 1


@workflow
def child_waits_in_race(topic: str) -> Any:
    return receive(topic)


@workflow
def races_two_messages() -> list[Any]:
    winner = race(lambda: receive("a"), lambda: receive("b"), lambda: sleep(3600))
    note("messages", winner)
    set_event("winner", winner[0])
    receive("continue")
    return [winner, receive("b" if winner[0] == 0 else "a")]


@pytest.mark.parametrize("first", ["a", "b"])
def test_message_of_loser_stays_pending(url: str, suspend_after: float, first: str) -> None:
    with Engine(url, suspend_after=suspend_after) as engine:
        handle = engine.start(races_two_messages)
        handle.send(f"to {first}", topic=first)
        index = "ab".index(first)
        assert handle.get_event("winner") == index
        other = "ab"[1 - index]
        handle.send(f"to {other}", topic=other)
        handle.send(None, topic="continue")
        assert handle.result() == [(index, f"to {first}"), f"to {other}"]
        assert abandoned(engine, handle.workflow_id) == sorted([other, "sleep"])


def abandoned(engine: Engine, workflow_id: str) -> list[str]:
    """Returns the names of the calls that the execution has abandoned."""
    calls = engine.show(workflow_id).checkpoints
    return sorted(call.name for call in calls if call.kind == "abandoned")


@workflow
def races_message_and_timer(rounds: int) -> list[Any]:
    received: list[Any] = []
    for i in range(rounds):
        set_event("round", i)
        winner, value = race(lambda: receive("n"), lambda: sleep(0.005))
        note(i, (winner, value))
        if winner == 0:
            received.append(value)
    while len(received) < rounds:
        received.append(receive("n"))
    return received


@pytest.mark.parametrize("suspend_after", [5.0, 0.001], ids=["stays", "suspends"])
def test_each_message_is_received_once_beside_timers(url: str, suspend_after: float) -> None:
    rounds = 100 if suspend_after < 1 else 200
    with Engine(url, suspend_after=suspend_after) as engine:
        handle = engine.start(races_message_and_timer, rounds)
        for i in range(rounds):
            handle.send(i, topic="n")
        assert handle.result() == list(range(rounds))


@workflow
def races_timers_in_rounds(rounds: int) -> list[int]:
    winners = []
    for i in range(rounds):
        winner, _ = race(lambda: sleep(0.001), lambda: sleep(0.001), lambda: sleep(0.001))
        note(i, winner)
        winners.append(winner)
    return winners


def test_equal_timers_have_one_winner_in_all_replays(url: str) -> None:
    with Engine(url, suspend_after=0.0) as engine:
        assert len(engine.start(races_timers_in_rounds, 60).result()) == 60


ended_first = threading.Event()


@workflow
def races_without_durable_calls(rounds: int) -> list[Any]:
    def end_late() -> str:
        # the other thread has ended before
        ended_first.wait(timeout=60)
        return "late"

    def end_early() -> str:
        ended_first.set()
        return "early"

    outcomes: list[Any] = []
    for _ in range(rounds):
        ended_first.clear()
        outcomes.append(race(end_late, end_early))
        outcomes.append(race(lambda: receive("never"), lambda: 5))
        outcomes.append(race(lambda: double_in_race(1), lambda: 5))
        outcomes.append(race(lambda: 5, lambda: double_in_race(1)))
        # the outer race is decided before the inner one
        outcomes.append(race(lambda: race(lambda: 1, lambda: receive("never")), lambda: 2))
    sleep(0.01)
    return outcomes


def test_branch_of_lowest_number_wins_before_any_delivery(url: str, suspend_after: float) -> None:
    expected = [(0, "late"), (1, 5), (1, 5), (0, 5), (1, 2)] * 20
    with Engine(url, suspend_after=suspend_after) as engine:
        for run in (engine.run, lambda *args: engine.start(*args).result()):
            assert run(races_without_durable_calls, 20) == expected


@workflow
def races_steps_in_rounds(rounds: int) -> int:
    for i in range(rounds):
        note(i, race(*(lambda n=n: double_in_race(double_in_race(n)) for n in range(4))))  # type: ignore[misc]
        sleep(0.0001)
    return rounds


def test_race_of_steps_has_one_winner_in_all_replays(url: str) -> None:
    with Engine(url, suspend_after=0.0) as engine:
        assert engine.start(races_steps_in_rounds, 40).result() == 40


@workflow
def races_one_call() -> list[Any]:
    return [race(lambda: double_in_race(2)), race(lambda: receive("a"))]


@workflow
def races_nothing() -> str:
    try:
        race()
    except InvalidArgument as error:
        return str(error)
    return "no error"


@workflow
def races_made_calls() -> str:
    try:
        race(lambda: sleep(1), double_in_race(2))  # type: ignore[call-overload]
    except InvalidArgument as error:
        return str(error)
    return "no error"


def test_arguments_of_race_are_checked(url: str) -> None:
    with Engine(url) as engine:
        handle = engine.start(races_one_call)
        handle.send("m", topic="a")
        assert handle.result() == [(0, 4), (0, "m")]
        for run in (engine.run, lambda function: engine.start(function).result()):
            assert run(races_nothing) == "race needs at least one call"
            assert run(races_made_calls).startswith(
                "argument 2 of race has the type int, and must be a function"
            )
    with pytest.raises(InvalidArgument, match="at least one call"):
        race()
    with pytest.raises(InvalidArgument, match=r'race\(lambda: receive\("paid"\), lambda: sleep\(60\)\)'):
        race(lambda: 1, 2)  # type: ignore[call-overload]


@workflow
def races_failing_step() -> list[Any]:
    outcomes: list[Any] = []
    try:
        outcomes.append(race(lambda: refuse_in_race(1), lambda: receive("never")))
    except ValueError as error:
        outcomes.append(str(error))

    def fail_after_win() -> None:
        try:
            receive("never")
        finally:
            raise KeyError("in the loser")

    outcomes.append(race(fail_after_win, lambda: double_in_race(3)))
    sleep(0.01)
    return outcomes


def test_exception_of_first_is_raised_and_others_dropped(url: str, suspend_after: float) -> None:
    with Engine(url, suspend_after=suspend_after) as engine:
        for run in (engine.run, lambda *args: engine.start(*args).result()):
            assert run(races_failing_step) == ["refused 1", (1, 6)]


@workflow
def races_all_kinds(program: str) -> list[Any]:
    token: Token[str] = create_token()
    set_event("token", token.id)
    calls: dict[str, Callable[[], Any]] = {
        "message": lambda: receive("a"),
        "answer": token.result,
        "event": lambda: get_event(program, "news"),
        "child": lambda: child_in_race(4),
        "timer": lambda: sleep(3600),
    }
    winners = []
    while len(calls) > 1:
        index, output = race(*calls.values())
        winner = list(calls)[index]
        note(len(winners), winner)
        winners.append((winner, output))
        del calls[winner]
        set_event(f"{winner} won", None)
    return winners


@workflow
def sets_event_for_race() -> None:
    receive("set")
    set_event("news", "n")


def test_all_kinds_of_waits_can_win(url: str, suspend_after: float) -> None:
    with Engine(url, suspend_after=suspend_after) as engine:
        setter = engine.start(sets_event_for_race)
        handle = engine.start(races_all_kinds, setter.workflow_id)
        token = handle.get_event("token")
        handle.get_event("child won")
        setter.send(None, topic="set")
        handle.get_event("event won")
        engine.complete_token(token, "t")
        handle.get_event("answer won")
        handle.send("m", topic="a")
        assert handle.result() == [("child", 9), ("event", "n"), ("answer", "t"), ("message", "m")]


@workflow
def races_in_races() -> list[Any]:
    def inner() -> tuple[int, Any]:
        return race(lambda: receive("x"), lambda: race(lambda: receive("y"), lambda: sleep(3600)))

    def gathered() -> tuple[Any, ...]:
        return gather(lambda: receive("x"), inner, lambda: sleep(3600))

    def mapped() -> list[Any]:
        return stepfast.map(receive, ["x", "y", "z"], concurrency=2)

    first = race(inner, gathered, mapped, lambda: receive("go"))
    note("first", first)
    set_event("first", None)
    second = race(inner, lambda: sleep(3600))
    note("second", second)
    both = gather(
        lambda: race(lambda: receive("p"), lambda: sleep(3600)),
        lambda: race(lambda: sleep(0.01), lambda: receive("q")),
    )
    note("both", both)
    return [first, second, both, receive("x", timeout=0)]


def test_races_and_gathers_nest_in_losers(url: str, suspend_after: float) -> None:
    with Engine(url, suspend_after=suspend_after) as engine:
        handle = engine.start(races_in_races)
        handle.send("go", topic="go")
        handle.get_event("first")
        lost = abandoned(engine, handle.workflow_id)
        assert lost == ["sleep"] * 3 + ["x"] * 4 + ["y"] * 3
        handle.send("y1", topic="y")
        handle.send("p1", topic="p")
        assert handle.result() == [(3, "go"), (0, (1, (0, "y1"))), ((0, "p1"), (0, None)), None]


@workflow
def races_child_and_others() -> list[Any]:
    return [
        race(lambda: child_in_race(4), lambda: sleep(3600)),
        race(lambda: receive("never"), lambda: child_in_race(5)),
    ]


@pytest.mark.parametrize("threads", [1, 2])
def test_race_of_child_leaves_it_a_thread(url: str, threads: int) -> None:
    with Engine(url, max_threads=threads) as engine:
        handles = [engine.start(races_child_and_others) for _ in range(4)]
        assert engine.results(handles) == [[(0, 9), (1, 11)]] * 4
        assert engine.run(races_child_and_others) == [(0, 9), (1, 11)]


@workflow
def races_children(topic: str) -> Any:
    return race(lambda: child_waits_in_race(topic), lambda: receive("go"))


def test_child_of_loser_continues(url: str) -> None:
    with Engine(url, max_threads=2) as engine:
        handle = engine.start(races_children, "c")
        handle.send("now", topic="go")
        assert handle.result() == (1, "now")
        (child,) = engine.list(workflow=child_waits_in_race.name)
        engine.send(child.workflow_id, "m", topic="c")
        assert engine.get(child.workflow_id).result() == "m"


def test_cancel_unwinds_race(url: str, suspend_after: float) -> None:
    with Engine(url, suspend_after=suspend_after) as engine:
        handle = engine.start(races_two_messages)
        assert handle.cancel()
        with pytest.raises(WorkflowCancelled):
            handle.result()
        assert abandoned(engine, handle.workflow_id) == []


def test_race_outside_of_workflows_has_no_record() -> None:
    released = threading.Event()
    assert race(lambda: released.wait(timeout=60), lambda: double_in_race(2)) == (1, 4)
    released.set()
    with pytest.raises(ValueError, match="refused 2"):
        race(lambda: refuse_in_race(2))

    async def main() -> None:
        async def double(n: int) -> int:
            return 2 * n

        assert await race(asyncio.Event().wait(), double(4)) == (1, 8)

    asyncio.run(main())


body_is_over = threading.Event()


@step
def races_in_body() -> Any:
    return race(lambda: double_in_race(4), lambda: body_is_over.wait(timeout=60))


@workflow
def races_in_its_step() -> Any:
    return races_in_body()


def test_race_in_body_of_step_has_no_record(url: str) -> None:
    with Engine(url) as engine:
        handle = engine.start(races_in_its_step)
        assert handle.result() == (0, 8)
        assert len(engine.show(handle.workflow_id).checkpoints) == 1
    body_is_over.set()
