"""`wait_until`: conditions that are checked until they hold."""

import asyncio
import dataclasses
import math
import pathlib
from collections.abc import Callable
from datetime import timedelta
from functools import partial
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


@step
def answer_with(first: Any, *, second: Any) -> Any:
    return answer() and [first, second]


@step
async def answer_with_async(first: Any, *, second: Any) -> Any:
    return await answer_async() and [first, second]


@step(process=True)
def length_in_process(text: str) -> int:
    return len(text)


@dataclasses.dataclass
class Shop:
    name: str

    @step
    def is_open(self) -> Any:
        return answer() and self.name

    @step
    async def is_open_async(self) -> Any:
        return await answer_async() and self.name

    def is_open_without_step(self) -> Any:
        return answer() and self.name


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


CONDITIONS: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "partial of step": (partial(answer_with, 1, second=2), [1, 2], "answer_with"),
    "partial of function": (partial(max, 3, 4), 4, "max"),
    "method": (Shop("x").is_open_without_step, "x", "Shop.is_open_without_step"),
    "method that is a step": (Shop("x").is_open, "x", "Shop.is_open"),
    "step in a process": (partial(length_in_process, "abc"), 3, "length_in_process"),
}
ASYNC_CONDITIONS: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "partial of async step": (partial(answer_with_async, 1, second=2), [1, 2], "answer_with_async"),
    "async method that is a step": (Shop("x").is_open_async, "x", "Shop.is_open_async"),
}


@workflow
def waits_for(name: str) -> Any:
    return wait_until(CONDITIONS[name][0], every=0.001)


@workflow
async def waits_for_async(name: str) -> Any:
    return await wait_until({**CONDITIONS, **ASYNC_CONDITIONS}[name][0], every=0.001)


@pytest.mark.parametrize("name", CONDITIONS)
def test_condition_takes_many_forms(url: str, name: str) -> None:
    _, expected, recorded = CONDITIONS[name]
    answers.extend([False, True])
    with Engine(url) as engine:
        assert engine.run(waits_for.options(workflow_id="x"), name) == expected
        assert engine.show("x").checkpoints[-1].name == recorded


@pytest.mark.parametrize("name", [*CONDITIONS, *ASYNC_CONDITIONS])
def test_condition_takes_many_forms_in_async_code(url: str, name: str) -> None:
    _, expected, recorded = {**CONDITIONS, **ASYNC_CONDITIONS}[name]
    answers.extend([False, True])

    async def main() -> None:
        async with AsyncEngine(url) as engine:
            assert await engine.run(waits_for_async.options(workflow_id="x"), name) == expected
            assert (await engine.show("x")).checkpoints[-1].name == recorded

    asyncio.run(main())


@workflow
def waits_with_fallback(every: float, timeout: float) -> str:
    try:
        wait_until(answer, every=every, timeout=timeout)
    except TimeoutError:
        return "too late"
    return "in time"


@workflow
async def waits_with_fallback_async(every: float, timeout: float) -> str:
    try:
        await wait_until(answer, every=every, timeout=timeout)
    except TimeoutError:
        return "too late"
    return "in time"


@pytest.mark.parametrize(("every", "timeout", "checks"), [(0.002, 0.01, 6), (0.0019, 0.0057, 4), (60, 0, 1)])
def test_timeout_is_the_same_in_each_replay(url: str, every: float, timeout: float, checks: int) -> None:
    answers.extend([False] * 10)
    with Engine(url, suspend_after=0) as engine:
        assert engine.run(waits_with_fallback, every, timeout) == "too late"
    assert len(calls) == checks

    async def main() -> None:
        async with AsyncEngine(url, suspend_after=0) as engine:
            assert await engine.run(waits_with_fallback_async, every, timeout) == "too late"

    calls.clear()
    answers.extend([False] * 10)
    asyncio.run(main())
    assert len(calls) == checks


@pytest.mark.parametrize("timeout", [math.inf, timedelta(days=10**6), 10**400])
def test_long_timeouts_end_no_wait(timeout: Any) -> None:
    answers.extend([False, "done"])
    assert wait_until(answer, every=0.001, timeout=timeout) == "done"


@workflow
def answers_others() -> None:
    answer_others()


@step
def answer_others() -> None:
    answers.append(True)


@step
def has_answers() -> bool:
    calls.append(1)
    return bool(answers)


@workflow
def waits_for_others() -> bool:
    waited: bool = wait_until(has_answers, every=0.05)
    return waited


@workflow
async def waits_for_others_async() -> bool:
    waited: bool = await wait_until(has_answers, every=0.05)
    return waited


def test_waiting_execution_uses_no_slot(url: str) -> None:
    with Engine(url, max_running=1, suspend_after=0) as engine:
        waiting = engine.start(waits_for_others)
        engine.run(answers_others)
        assert waiting.result() is True
    assert len(calls) >= 2


def test_waiting_execution_uses_no_slot_in_async_code(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url, max_running=1, suspend_after=0) as engine:
            waiting = await engine.start(waits_for_others_async)
            await engine.run(answers_others)
            assert await waiting is True

    asyncio.run(main())
    assert len(calls) >= 2


@workflow
async def waits_twice_at_once() -> list[Any]:
    return await asyncio.gather(wait_until(answer, every=0.001), wait_until(answer_async, every=0.001))


def test_two_waits_run_concurrently(url: str) -> None:
    answers.extend([False, False, 1, 1])

    async def main() -> None:
        async with AsyncEngine(url, suspend_after=0) as engine:
            assert await engine.run(waits_twice_at_once) == [1, 1]

    asyncio.run(main())


@workflow
def waits_for_async_condition() -> Any:
    return wait_until(answer_async, every=1)


def test_sync_code_rejects_async_conditions() -> None:
    message = "condition is .*answer_async.*, which is async, but the code that waits is sync"
    with pytest.raises(InvalidArgument, match=message):
        wait_until(answer_async, every=1)
    with Engine("memory:") as engine, pytest.raises(InvalidArgument, match=message):
        engine.run(waits_for_async_condition)


@pytest.mark.parametrize(
    "every", [0, -1, -math.inf, math.inf, math.nan, timedelta(0), True, "1", None, 10**400]
)
def test_wrong_pauses_are_rejected(every: Any) -> None:
    with pytest.raises(InvalidArgument, match="every"):
        wait_until(answer, every=every)

    async def main() -> None:
        with pytest.raises(InvalidArgument, match="every"):
            wait_until(answer_async, every=every)

    asyncio.run(main())
    assert not calls


@pytest.mark.parametrize("limit", [-1, -math.inf, math.nan, timedelta(-1), True, "1", []])
def test_wrong_timeouts_are_rejected(limit: Any) -> None:
    with pytest.raises(InvalidArgument, match="timeout"):
        wait_until(answer, every=1, timeout=limit)
    assert not calls


@pytest.mark.parametrize("condition", [3, None, waits, waits.options(), partial(waits, None)])
def test_wrong_conditions_are_rejected(condition: Any) -> None:
    with pytest.raises(InvalidArgument):
        wait_until(condition, every=1)
    with pytest.raises(InvalidArgument, match="condition is 3, and must be a function"):
        wait_until(3, every=1)  # type: ignore[call-overload]
