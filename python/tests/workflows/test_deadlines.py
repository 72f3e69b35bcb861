"""Deadlines and cancels of executions whose code calls many steps, or runs a long one."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import pytest

import stepfast
from stepfast import AsyncEngine, Client, Engine, Queue, WorkflowCancelled, sleep, step, workflow

#: Maximum time of each wait, in seconds. A wait that takes longer hangs.
HANG_TIMEOUT = 30

gate = threading.Event()
body_has_begun = threading.Event()
interrupted_bodies: list[str] = []


@step
def do_nothing() -> None:
    pass


@step
async def do_nothing_async() -> None:
    pass


@workflow
def calls_steps_forever() -> None:
    while True:
        do_nothing()


@workflow
async def calls_steps_forever_async() -> None:
    while True:
        await do_nothing_async()


@step
def wait_for_gate() -> None:
    body_has_begun.set()
    gate.wait(HANG_TIMEOUT)


@workflow
def calls_long_step() -> str:
    wait_for_gate()
    return "completed"


@step
async def wait_forever() -> None:
    body_has_begun.set()
    try:
        await asyncio.Event().wait()
    finally:
        interrupted_bodies.append("body")


@workflow
async def awaits_endless_step() -> None:
    await wait_forever()


@pytest.fixture(autouse=True)
def close_gate() -> None:
    gate.clear()
    body_has_begun.clear()
    interrupted_bodies.clear()


def test_sync_execution_ends_at_its_deadline(url: str) -> None:
    with Engine(url, queues=[Queue("q", concurrency=1)]) as engine:
        limited_workflow = calls_steps_forever.options(execution_timeout=0.1)
        with pytest.raises(WorkflowCancelled, match="deadline"):
            engine.start(limited_workflow).result(HANG_TIMEOUT)
        with pytest.raises(WorkflowCancelled, match="deadline"):
            engine.run(limited_workflow)
        queued_workflow = calls_steps_forever.options(queue="q", run_timeout=0.1)
        for handle in [engine.start(queued_workflow), engine.start(queued_workflow)]:
            with pytest.raises(WorkflowCancelled, match="deadline"):
                handle.result(HANG_TIMEOUT)


def test_async_execution_ends_at_its_deadline(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url, queues=[Queue("q", concurrency=1)]) as engine:
            limited_workflow = calls_steps_forever_async.options(execution_timeout=0.1)
            with pytest.raises(WorkflowCancelled, match="deadline"):
                await (await engine.start(limited_workflow)).result()
            with pytest.raises(WorkflowCancelled, match="deadline"):
                await engine.run(limited_workflow)
            handle = await engine.start(calls_steps_forever_async.options(queue="q", run_timeout=0.1))
            with pytest.raises(WorkflowCancelled, match="deadline"):
                await handle.result()

    asyncio.run(asyncio.wait_for(main(), HANG_TIMEOUT))


def growing_time_limits() -> Iterator[float]:
    """Yields time limits that double. Even on a busy machine a body begins within one of them."""
    return (0.1 * 2**n for n in range(9))


def test_execution_ends_at_its_deadline_during_step(url: str) -> None:
    with Engine(url) as engine:
        for limit in growing_time_limits():
            handle = engine.start(calls_long_step.options(execution_timeout=limit))
            with pytest.raises(WorkflowCancelled, match="deadline"):
                handle.result(HANG_TIMEOUT)
            if body_has_begun.is_set():
                break
        assert body_has_begun.is_set()
        assert not gate.is_set()
        gate.set()


def test_inline_run_returns_no_output_after_deadline(url: str) -> None:
    with Engine(url) as engine:
        timer = threading.Timer(0.3, gate.set)
        timer.start()
        with pytest.raises(WorkflowCancelled, match="deadline"):
            engine.run(calls_long_step.options(execution_timeout=0.1))
        timer.join()


def test_async_body_is_interrupted_at_deadline(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            for limit in growing_time_limits():
                limited_workflow = awaits_endless_step.options(execution_timeout=limit)
                before = len(interrupted_bodies)
                with pytest.raises(WorkflowCancelled, match="deadline"):
                    await (await engine.start(limited_workflow)).result()
                with pytest.raises(WorkflowCancelled, match="deadline"):
                    await engine.run(limited_workflow)
                if len(interrupted_bodies) == before + 2:
                    return
        pytest.fail(f"a body did not begin, or was not interrupted: {interrupted_bodies}")

    asyncio.run(asyncio.wait_for(main(), HANG_TIMEOUT))


def test_cancel_by_client_races_with_completion(url: str) -> None:
    with Engine(url) as engine, Client(url) as client:
        for n in range(20):
            gate.clear()
            body_has_begun.clear()
            handle = engine.start(calls_long_step.options(workflow_id=f"cancelled-{n}"))
            assert body_has_begun.wait(HANG_TIMEOUT)
            assert client.cancel(f"cancelled-{n}")
            gate.set()
            with pytest.raises(WorkflowCancelled):
                handle.result(HANG_TIMEOUT)
            assert handle.status() == "cancelled"


@workflow
async def times_out_and_sleeps() -> None:
    with contextlib.suppress(TimeoutError):
        await stepfast.wait_for(wait_forever(), 0.05)
    await sleep(3600)


@workflow
async def sleeps_while_branches_end() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(sleep(3600))
        for _ in range(3):
            group.create_task(do_nothing_async())


@pytest.mark.parametrize("sleeper", [times_out_and_sleeps, sleeps_while_branches_end])
def test_sleep_is_recorded_after_other_calls_end(url: str, sleeper: stepfast.Workflow[[], object]) -> None:
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
