"""The threads of races: the calls of losers unwind before the race returns."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import stepfast
from stepfast import (
    Engine,
    WorkflowCancelled,
    current,
    race,
    receive,
    receive_question,
    set_event,
    sleep,
    step,
    workflow,
)
from stepfast.errors import Cancelled, Suspended

#: What the threads of this module have done. Real workflows must not use such a list.
log: list[Any] = []


@pytest.fixture(autouse=True)
def no_threads() -> Iterator[None]:
    """Checks that no thread of a race outlives its race."""
    log.clear()
    before = set(threading.enumerate())
    yield
    threads = [it for it in threading.enumerate() if it.name.startswith("stepfast-race") and it not in before]
    assert threads == []


@step
def return_in_loser(text: str) -> str:
    return text


def kinds(engine: Engine, workflow_id: str) -> list[tuple[str, str]]:
    """Returns the kinds and the names of the recorded calls."""
    return [(call.kind, call.name) for call in engine.show(workflow_id).checkpoints]


@workflow
def races_with_stubborn_losers() -> Any:
    lock = threading.Lock()

    def catch_all() -> str:
        for _ in range(3):
            with contextlib.suppress(BaseException):
                receive("never")
        return "caught"

    def clean_up() -> None:
        try:
            receive("never")
        finally:
            return_in_loser("in finally")

    def hold_lock() -> None:
        with lock:
            receive("never")

    def race_in_finally() -> None:
        try:
            race(lambda: receive("never"), lambda: sleep(3600))
        finally:
            race(lambda: log.append("a race has begun in a loser"), lambda: sleep(3600))

    winner = race(catch_all, clean_up, hold_lock, race_in_finally, lambda: sleep(0.01))
    with lock:
        return winner


def test_losers_record_nothing_while_they_unwind(url: str) -> None:
    for suspend_after in (5.0, 0.001):
        with Engine(url, suspend_after=suspend_after) as engine:
            handle = engine.start(races_with_stubborn_losers)
            assert handle.result() == (4, None)
            lost = [("abandoned", "never")] * 4 + [("abandoned", "sleep")]
            assert sorted(kinds(engine, handle.workflow_id)) == [*lost, ("sleep", "sleep")]
            assert log == []


@workflow
def logs_exception_of_loser() -> None:
    def wait() -> None:
        try:
            receive("never")
        except BaseException as raised:
            log.append((type(raised), str(raised), isinstance(raised, Exception)))
            raise

    race(wait, lambda: sleep(0.01))


def test_loser_unwinds_by_exception_that_is_no_error(sqlite_url: str) -> None:
    with Engine(sqlite_url) as engine:
        for run in (engine.run, lambda function: engine.start(function).result()):
            log.clear()
            run(logs_exception_of_loser)
            assert log == [(Suspended, "another call of the race has ended first", False)]


#: Released by each thread that unwinds.
unwound = threading.Semaphore(0)


@workflow
def counts_unwound_threads() -> Any:
    def wait(topic: str) -> Any:
        try:
            return receive(topic)
        except BaseException as raised:
            log.append(type(raised))
            unwound.release()
            raise

    return race(lambda: wait("a"), lambda: race(lambda: wait("b"), lambda: wait("c")))


def test_suspended_race_occupies_no_thread(url: str) -> None:
    global unwound
    unwound = threading.Semaphore(0)
    with Engine(url, suspend_after=0.001) as engine:
        handle = engine.start(counts_unwound_threads)
        for _ in range(3):
            assert unwound.acquire(timeout=60)
        assert log == [Suspended] * 3
        handle.send("m", topic="c")
        assert handle.result() == (1, (1, "m"))


def test_cancelled_race_unwinds_all_threads(url: str) -> None:
    with Engine(url) as engine:
        handle = engine.start(counts_unwound_threads)
        assert handle.cancel()
        with pytest.raises(WorkflowCancelled):
            handle.result()
        assert set(log) <= {Cancelled, Suspended}


@step
def blocks_in_loser() -> str:
    log.append("body")
    assert race_is_decided.wait(timeout=60)
    return "lost"


@step
def fails_in_loser() -> str:
    log.append("body")
    assert race_is_decided.wait(timeout=60)
    raise ValueError("lost")


@step(retries=5, backoff=0)
def retries_in_loser() -> str:
    log.append(f"attempt {current().attempt}")
    assert race_is_decided.wait(timeout=60)
    raise ValueError("lost")


#: Set by a loser of the race that unwinds.
race_is_decided = threading.Event()


@workflow
def races_with_running_bodies() -> Any:
    def lose() -> None:
        try:
            receive("never")
        except BaseException:
            if len(log) == 3:
                # all bodies run, so this is no suspension
                race_is_decided.set()
            raise

    winner = race(blocks_in_loser, lambda: receive("go"), fails_in_loser, retries_in_loser, lose)
    log.append("race has returned")
    receive("continue")
    return winner


def test_running_body_of_loser_ends_and_is_dropped(url: str) -> None:
    race_is_decided.clear()
    with Engine(url, suspend_after=0.001) as engine:
        handle = engine.start(races_with_running_bodies)
        handle.send(None, topic="go")
        handle.send(None, topic="continue")
        assert handle.result() == (1, None)
        # no body runs again, neither in another attempt nor in a replay
        assert sorted(log[:3]) == ["attempt 1", "body", "body"]
        assert set(log[3:]) == {"race has returned"}
        record = engine.show(handle.workflow_id)
        assert record.attempts == ()
        names = ("blocks_in_loser", "fails_in_loser", "never", "retries_in_loser")
        lost = sorted(call.name for call in record.checkpoints if call.kind == "abandoned")
        assert lost == sorted(names)


@workflow
def answers_after_race() -> str:
    question = receive_question()

    def answer_in_loser() -> None:
        try:
            receive("never")
        finally:
            question.answer("loser")

    race(answer_in_loser, lambda: sleep(0.01))
    question.answer("after race")
    return "answered"


def test_question_can_be_answered_after_loser_has_tried(sqlite_url: str) -> None:
    with Engine(sqlite_url) as engine:
        handle = engine.start(answers_after_race)
        assert handle.ask(None) == "after race"
        assert handle.result() == "answered"


race_is_over = threading.Event()


@step
def waits_for_end_of_race() -> str:
    assert race_is_over.wait(timeout=60)
    return "child"


@workflow
def child_outlives_race() -> str:
    return waits_for_end_of_race()


@workflow
def races_child_in_other_thread() -> Any:
    winner = race(child_outlives_race, lambda: receive("go"))
    race_is_over.set()
    return winner


def test_race_does_not_wait_for_child_of_loser(url: str) -> None:
    race_is_over.clear()
    with Engine(url) as engine:
        handle = engine.start(races_child_in_other_thread)
        handle.send("gone", topic="go")
        assert handle.result() == (1, "gone")
        (child,) = engine.list(workflow=child_outlives_race.name)
        assert engine.get(child.workflow_id).result() == "child"


@workflow
def races_in_branches(count: int, rounds: int) -> list[int]:
    def race_in_rounds(n: int) -> int:
        wins = 0
        for i in range(rounds):
            index, _ = race(
                lambda i=i: sleep(0.0005 * ((n + i) % 3)),  # type: ignore[misc]
                lambda: return_in_loser("a"),
                lambda: race(lambda: return_in_loser("b"), lambda: sleep(0.001)),
            )
            wins += index
            log.append((n, i, index))
        return wins

    return stepfast.map(race_in_rounds, range(count))


@pytest.mark.parametrize("suspend_after", [5.0, 0.0])
def test_races_in_branches_replay_the_same_winners(url: str, suspend_after: float) -> None:
    with Engine(url, suspend_after=suspend_after) as engine:
        for run in (engine.run, lambda *args: engine.start(*args).result()):
            log.clear()
            run(races_in_branches, 8, 10)
            winners = set(log)
            assert len(winners) == 80, "a replay had other winners"


class Held:
    """An object whose life a test observes."""


@workflow
def races_with_held_object() -> None:
    held = Held()
    log.append(weakref.ref(held))

    def fail() -> None:
        receive("go")
        raise ValueError(held)

    with contextlib.suppress(ValueError):
        race(fail, lambda: receive("never", timeout=len(str(held))))


def test_race_makes_no_reference_cycle(sqlite_url: str) -> None:
    with Engine(sqlite_url) as engine:
        handle = engine.start(races_with_held_object)
        gc.collect()
        gc.disable()
        try:
            handle.send(None, topic="go")
            handle.result()
            assert log[0]() is None
        finally:
            gc.enable()


@workflow
def ends_program_in_race() -> Any:
    set_event("begun", None)
    race(lambda: receive("never"), lambda: exit_once())
    return receive("go")


def exit_once() -> None:
    receive("exit")
    if log:
        return
    log.append("exit")
    raise SystemExit(3)


def test_exit_in_race_defers_the_execution(sqlite_url: str) -> None:
    with Engine(sqlite_url) as engine:
        handle = engine.start(ends_program_in_race)
        handle.send(None, topic="exit")
        handle.send("gone", topic="go")
        # the execution continues from its record after a pause
        assert handle.result() == "gone"
