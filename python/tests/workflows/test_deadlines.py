"""Deadlines and cancels of executions whose code goes from step to step, or is in a long one."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import pytest

import stepfast
from stepfast import AsyncEngine, Client, Engine, Queue, WorkflowCancelled, sleep, step, workflow

HANG_TIMEOUT = 30
"""Seconds after which something that waits is taken to hang."""

gate = threading.Event()
begun = threading.Event()
interrupted: list[str] = []


@step
def tick() -> None:
    pass


@step
async def tick_async() -> None:
    pass


@workflow
def ticks() -> None:
    while True:
        tick()


@workflow
async def ticks_async() -> None:
    while True:
        await tick_async()


@step
def waits_for_the_gate() -> None:
    begun.set()
    gate.wait(HANG_TIMEOUT)


@workflow
def has_a_long_step() -> str:
    waits_for_the_gate()
    return "completed"


@step
async def waits_for_ever() -> None:
    begun.set()
    try:
        await asyncio.Event().wait()
    finally:
        interrupted.append("body")


@workflow
async def has_an_endless_step() -> None:
    await waits_for_ever()


@pytest.fixture(autouse=True)
def closed() -> None:
    gate.clear()
    begun.clear()
    interrupted.clear()


def test_a_sync_execution_ends_at_its_deadline(url: str) -> None:
    with Engine(url, queues=[Queue("q", concurrency=1)]) as engine:
        limited = ticks.options(execution_timeout=0.1)
        with pytest.raises(WorkflowCancelled, match="deadline"):
            engine.start(limited).result(HANG_TIMEOUT)
        with pytest.raises(WorkflowCancelled, match="deadline"):
            engine.run(limited)
        queued = ticks.options(queue="q", run_timeout=0.1)
        for handle in [engine.start(queued), engine.start(queued)]:
            with pytest.raises(WorkflowCancelled, match="deadline"):
                handle.result(HANG_TIMEOUT)


def test_an_async_execution_ends_at_its_deadline(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url, queues=[Queue("q", concurrency=1)]) as engine:
            limited = ticks_async.options(execution_timeout=0.1)
            with pytest.raises(WorkflowCancelled, match="deadline"):
                await (await engine.start(limited)).result()
            with pytest.raises(WorkflowCancelled, match="deadline"):
                await engine.run(limited)
            handle = await engine.start(ticks_async.options(queue="q", run_timeout=0.1))
            with pytest.raises(WorkflowCancelled, match="deadline"):
                await handle.result()

    asyncio.run(asyncio.wait_for(main(), HANG_TIMEOUT))


def limits() -> Iterator[float]:
    """Limits in time, each longer than the one before: on a busy machine a body begins within one of them."""
    return (0.1 * 2**n for n in range(9))


def test_an_execution_ends_at_its_deadline_whatever_its_step_does(url: str) -> None:
    with Engine(url) as engine:
        for limit in limits():
            handle = engine.start(has_a_long_step.options(execution_timeout=limit))
            with pytest.raises(WorkflowCancelled, match="deadline"):
                handle.result(HANG_TIMEOUT)
            if begun.is_set():
                break
        assert begun.is_set()
        assert not gate.is_set()
        gate.set()


def test_a_caller_that_runs_the_code_gets_no_late_output(url: str) -> None:
    with Engine(url) as engine:
        opens = threading.Timer(0.3, gate.set)
        opens.start()
        with pytest.raises(WorkflowCancelled, match="deadline"):
            engine.run(has_a_long_step.options(execution_timeout=0.1))
        opens.join()


def test_the_body_of_an_async_step_is_interrupted_at_the_deadline(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            for limit in limits():
                limited = has_an_endless_step.options(execution_timeout=limit)
                before = len(interrupted)
                with pytest.raises(WorkflowCancelled, match="deadline"):
                    await (await engine.start(limited)).result()
                with pytest.raises(WorkflowCancelled, match="deadline"):
                    await engine.run(limited)
                if len(interrupted) == before + 2:
                    return
        pytest.fail(f"a body did not begin, or was not interrupted: {interrupted}")

    asyncio.run(asyncio.wait_for(main(), HANG_TIMEOUT))


def test_a_client_s_cancel_meets_the_end(url: str) -> None:
    with Engine(url) as engine, Client(url) as client:
        for n in range(20):
            gate.clear()
            begun.clear()
            handle = engine.start(has_a_long_step.options(workflow_id=f"it-{n}"))
            assert begun.wait(HANG_TIMEOUT)
            assert client.cancel(f"it-{n}")
            gate.set()
            with pytest.raises(WorkflowCancelled):
                handle.result(HANG_TIMEOUT)
            assert handle.status() == "cancelled"


@workflow
async def gives_up_and_sleeps() -> None:
    with contextlib.suppress(TimeoutError):
        await stepfast.wait_for(waits_for_ever(), 0.05)
    await sleep(3600)


@workflow
async def branches_end_while_it_sleeps() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(sleep(3600))
        for _ in range(3):
            group.create_task(tick_async())


@pytest.mark.parametrize("sleeper", [gives_up_and_sleeps, branches_end_while_it_sleeps])
def test_a_sleep_is_recorded_whatever_came_before_it(
    url: str, sleeper: stepfast.Workflow[[], object]
) -> None:
    async def main() -> None:
        async with AsyncEngine(url, suspend_after=0.1) as engine:
            for _ in range(5):
                handle = await engine.start(sleeper)
                while await handle.status() != "waiting":
                    await asyncio.sleep(0.01)
                execution = (await engine.show(handle.workflow_id)).execution
                assert execution.wake_at is not None
                assert await handle.cancel()

    asyncio.run(asyncio.wait_for(main(), HANG_TIMEOUT))
