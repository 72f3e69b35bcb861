"""Limits in time that a replay repeats, and calls that end in the same moment."""

import asyncio
import threading
import time
from typing import Any

import pytest

import stepfast
from stepfast import AsyncEngine, AsyncHandle, sleep, step, workflow

#: Executions of each test: the call of some ends between the limit and the moment in which the code notices.
MANY = 60
LIMIT = 0.05

_held = threading.Semaphore(0)
_is_first = threading.Event()


@workflow
async def as_long_as_the_limit() -> int:
    await sleep(LIMIT)
    return 1


@step
async def held_once() -> None:
    """Waits for ever in the first run."""
    if _is_first.is_set():
        _held.release()
        await asyncio.Event().wait()


@workflow
async def by_timeout() -> str:
    came = "in time"
    try:
        async with stepfast.timeout(LIMIT):
            await as_long_as_the_limit()
            await sleep(hours=1)
    except TimeoutError:
        came = "timed out"
    await held_once()
    return came


@workflow
async def by_wait_for() -> str:
    async def code() -> None:
        child = await as_long_as_the_limit.start()
        await child
        await sleep(hours=1)

    came = "in time"
    try:
        await stepfast.wait_for(code(), LIMIT)
    except TimeoutError:
        came = "timed out"
    await held_once()
    return came


async def started(engine: AsyncEngine, limited: Any) -> list[AsyncHandle[str]]:
    """Starts many, and holds the loop until their limits are over, and their children have ended."""
    handles = [await engine.start(limited.options(workflow_id=f"{n}")) for n in range(MANY)]
    over = time.monotonic() + 2 * LIMIT
    while time.monotonic() < over:
        pass
    return handles


@pytest.mark.parametrize("limited", [by_timeout, by_wait_for])
def test_a_limit_strikes_though_its_call_ends_in_the_same_moment(url: str, limited: Any) -> None:
    async def limiting() -> list[str]:
        async with AsyncEngine(url) as engine:
            handles = await started(engine, limited)
            return await asyncio.wait_for(engine.results(handles), 60)

    _is_first.clear()
    assert set(asyncio.run(limiting())) == {"timed out"}


@pytest.mark.parametrize("limited", [by_timeout, by_wait_for])
def test_a_replay_repeats_it(url: str, limited: Any) -> None:
    async def first() -> None:
        async with AsyncEngine(url) as engine:
            await started(engine, limited)
            for _ in range(MANY):
                assert await asyncio.to_thread(_held.acquire, timeout=60)

    async def second() -> list[str]:
        async with AsyncEngine(url) as engine:
            handles: list[AsyncHandle[str]] = [await engine.get(f"{n}") for n in range(MANY)]
            return await asyncio.wait_for(engine.results(handles), 60)

    _is_first.set()
    asyncio.run(first())
    _is_first.clear()
    assert set(asyncio.run(second())) == {"timed out"}
