"""`wait_until`: conditions that are checked until they hold."""

import asyncio
import math
import pathlib
from datetime import timedelta
from typing import Any

import pytest

from stepfast import AsyncEngine, Engine, InvalidArgument, step, wait_until, workflow

calls: list[int] = []
answers: list[Any] = []


def answer() -> Any:
    calls.append(1)
    return answers.pop(0)


@step(retries=1, backoff=0)
def answer_step() -> Any:
    return answer()


async def answer_async() -> Any:
    await asyncio.sleep(0)
    return answer()


@workflow
def waits(timeout: float | None) -> Any:
    return wait_until(answer, every=0.002, timeout=timeout)


@workflow
def waits_for_step() -> Any:
    return wait_until(answer_step, every=timedelta(milliseconds=2))


@workflow
async def waits_async(kind: str) -> Any:
    condition: Any = {"sync": answer, "step": answer_step, "async": answer_async}[kind]
    return await wait_until(condition, every=0.002)


@pytest.fixture(autouse=True)
def fresh() -> None:
    calls.clear()
    answers.clear()


def test_wait_ends_with_the_true_value(url: str) -> None:
    answers.extend([None, 0, [], {"paid": True}])
    with Engine(url) as engine:
        assert engine.run(waits.options(workflow_id="x"), None) == {"paid": True}
        kinds = [(each.kind, each.name) for each in engine.show("x").checkpoints]
    assert kinds == [("step", "answer"), ("sleep", "sleep")] * 3 + [("step", "answer")]


def test_condition_may_be_a_step_with_retries(url: str) -> None:
    answers.extend([False, True])
    with Engine(url) as engine:
        assert engine.run(waits_for_step) is True


@pytest.mark.parametrize("kind", ["sync", "step", "async"])
def test_async_code_awaits_the_condition(url: str, kind: str) -> None:
    answers.extend([False, "yes"])

    async def main() -> Any:
        async with AsyncEngine(url) as engine:
            return await engine.run(waits_async, kind)

    assert asyncio.run(main()) == "yes"


def test_wait_ends_after_its_timeout(url: str) -> None:
    answers.extend([False] * 10)
    with Engine(url) as engine, pytest.raises(TimeoutError, match="'answer' did not hold within 0.005 s"):
        engine.run(waits, 0.005)
    # after 0, 2, 4 and 5 ms of pauses
    assert len(calls) == 4


def test_timeout_of_zero_checks_once(url: str) -> None:
    answers.extend([False, True])
    with Engine(url) as engine, pytest.raises(TimeoutError):
        engine.run(waits, 0)
    assert len(calls) == 1


def test_wait_survives_a_suspension_and_a_restart(tmp_path: pathlib.Path) -> None:
    url = f"sqlite:{tmp_path / 'wait.db'}"
    answers.extend([False, False, "done"])

    @workflow(name="waits_long")
    def waits_long() -> Any:
        return wait_until(answer, every=0.05)

    with Engine(url, suspend_after=0.01) as engine:
        engine.start(waits_long.options(workflow_id="x"))
        while not calls:
            pass
    with Engine(url, suspend_after=0.01) as engine:
        assert engine.get("x").result() == "done"
    assert len(calls) == 3


def test_error_of_the_condition_fails_the_workflow(url: str) -> None:
    with Engine(url) as engine, pytest.raises(IndexError):
        engine.run(waits, None)


def test_code_outside_of_workflows_waits_too() -> None:
    answers.extend([False, 1])
    assert wait_until(answer, every=0.001) == 1
    answers.extend([False, 2])

    async def main() -> Any:
        return await wait_until(answer_async, every=0.001)

    assert asyncio.run(main()) == 2


@pytest.mark.parametrize("every", [0, -1, math.nan, "1", None])
def test_wrong_pauses_are_rejected(every: Any) -> None:
    with pytest.raises(InvalidArgument, match="every"):
        wait_until(answer, every=every)


def test_wrong_conditions_and_timeouts_are_rejected() -> None:
    with pytest.raises(InvalidArgument, match="condition is 3, and must be a function"):
        wait_until(3, every=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="timeout"):
        wait_until(answer, every=1, timeout=-1)
