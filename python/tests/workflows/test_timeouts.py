"""Time limits: calls that end in the same moment, and the replay of both."""

import asyncio
import threading
import time
from typing import Any

import pytest

import stepfast
from stepfast import AsyncEngine, AsyncHandle, sleep, step, workflow

#: The number of executions of each test. In some, the call ends after the limit, before the code handles it.
EXECUTION_COUNT = 60
#: The time limit of calls, in seconds.
TIME_LIMIT = 0.05

hold_has_begun = threading.Semaphore(0)
is_first_run = threading.Event()


@workflow
async def sleeps_for_time_limit() -> int:
    await sleep(TIME_LIMIT)
    return 1


@step
async def hold_in_first_run() -> None:
    """Blocks in the first run, until its engine is closed."""
    if is_first_run.is_set():
        hold_has_begun.release()
        await asyncio.Event().wait()


@workflow
async def uses_timeout() -> str:
    outcome = "in time"
    try:
        async with stepfast.timeout(TIME_LIMIT):
            await sleeps_for_time_limit()
            await sleep(hours=1)
    except TimeoutError:
        outcome = "timed out"
    await hold_in_first_run()
    return outcome


@workflow
async def uses_wait_for() -> str:
    async def code() -> None:
        child = await sleeps_for_time_limit.start()
        await child
        await sleep(hours=1)

    outcome = "in time"
    try:
        await stepfast.wait_for(code(), TIME_LIMIT)
    except TimeoutError:
        outcome = "timed out"
    await hold_in_first_run()
    return outcome


async def start_and_block_loop(engine: AsyncEngine, limited_workflow: Any) -> list[AsyncHandle[str]]:
    """Starts all executions, and blocks the loop until all limits are over and all children have ended."""
    handles = [
        await engine.start(limited_workflow.options(workflow_id=f"{n}")) for n in range(EXECUTION_COUNT)
    ]
    blocked_until = time.monotonic() + 2 * TIME_LIMIT
    while time.monotonic() < blocked_until:
        pass
    return handles


@pytest.mark.parametrize("limited_workflow", [uses_timeout, uses_wait_for])
def test_time_limit_holds_if_its_call_ends_in_same_moment(url: str, limited_workflow: Any) -> None:
    async def run_all() -> list[str]:
        async with AsyncEngine(url) as engine:
            handles = await start_and_block_loop(engine, limited_workflow)
            return await asyncio.wait_for(engine.results(handles), 60)

    is_first_run.clear()
    assert set(asyncio.run(run_all())) == {"timed out"}


@pytest.mark.parametrize("limited_workflow", [uses_timeout, uses_wait_for])
def test_replay_repeats_end_by_time_limit(url: str, limited_workflow: Any) -> None:
    async def first() -> None:
        async with AsyncEngine(url) as engine:
            await start_and_block_loop(engine, limited_workflow)
            for _ in range(EXECUTION_COUNT):
                assert await asyncio.to_thread(hold_has_begun.acquire, timeout=60)

    async def second() -> list[str]:
        async with AsyncEngine(url) as engine:
            handles: list[AsyncHandle[str]] = [await engine.get(f"{n}") for n in range(EXECUTION_COUNT)]
            return await asyncio.wait_for(engine.results(handles), 60)

    is_first_run.set()
    asyncio.run(first())
    is_first_run.clear()
    assert set(asyncio.run(second())) == {"timed out"}
