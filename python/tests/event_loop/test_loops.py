"""An AsyncEngine belongs to one event loop: elsewhere it says so, and it ends with that loop."""

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stepfast import AsyncEngine, AsyncHandle, Error, InvalidArgument, Unavailable, sleep, step, workflow


@step
async def one_on_a_loop() -> int:
    return 1


@workflow
async def ones_on_a_loop(n: int) -> int:
    return sum([await one_on_a_loop() for _ in range(n)])


async def uses(engine: AsyncEngine, handle: AsyncHandle[int]) -> list[str]:
    """The codes of the errors that uses of an engine end with."""
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: engine.start(ones_on_a_loop, 1),
        lambda: engine.run(ones_on_a_loop, 1),
        lambda: engine.get("a"),
        lambda: engine.list(),
        lambda: engine.count(),
        lambda: engine.show("a"),
        lambda: engine.results([handle]),
        lambda: engine.cancel("a"),
        lambda: handle.result(),
        lambda: handle.status(),
        lambda: handle.cancel(),
        lambda: handle,
        lambda: engine.close(),
    ]
    codes = []
    for call in calls:
        try:
            await call()
        except Error as error:
            codes.append(f"{type(error).__name__} {error.code}")
        else:
            codes.append("no error")
    return codes


ELSEWHERE = "InvalidArgument SF-0033"


def test_another_thread_is_told_whose_it_is(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            handle = await engine.start(ones_on_a_loop.options(workflow_id="a"), 3)
            assert await handle == 3
            seen: list[str] = []
            other = threading.Thread(target=lambda: seen.extend(asyncio.run(uses(engine, handle))))
            other.start()
            await asyncio.to_thread(other.join, 60)
            assert seen == [ELSEWHERE] * 13
            # nothing has happened to it
            assert await engine.run(ones_on_a_loop, 2) == 2

    asyncio.run(main())


def test_a_thread_without_a_loop_is_told_too(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:

            def step_by_hand() -> None:
                with pytest.raises(InvalidArgument, match="run_coroutine_threadsafe"):
                    engine.run(ones_on_a_loop, 1).send(None)

            await asyncio.to_thread(step_by_hand)

            def by_its_loop() -> int:
                return asyncio.run_coroutine_threadsafe(engine.run(ones_on_a_loop, 4), loop).result(60)

            loop = asyncio.get_running_loop()
            assert await asyncio.to_thread(by_its_loop) == 4

    asyncio.run(main())


def test_the_next_loop_is_told(url: str) -> None:
    kept: list[tuple[AsyncEngine, AsyncHandle[int]]] = []

    async def first() -> None:
        engine = await AsyncEngine(url).open()
        kept.append((engine, await engine.start(ones_on_a_loop.options(workflow_id="a"), 3)))

    with pytest.warns(ResourceWarning, match="AsyncEngine was not closed"):
        asyncio.run(first())
    # it has ended with its loop: there is nothing left to close
    assert asyncio.run(uses(*kept[0])) == [ELSEWHERE] * 12 + ["no error"]

    async def again() -> None:
        # it may be opened on another loop
        async with kept[0][0] as engine:
            assert await engine.run(ones_on_a_loop, 2) == 2
            assert await (await engine.get("a")) == 3

    asyncio.run(again())


def test_it_has_to_be_open(url: str) -> None:
    async def main() -> None:
        engine = AsyncEngine(url)
        with pytest.raises(InvalidArgument, match="not open"):
            await engine.run(ones_on_a_loop, 1)
        await engine.close()
        async with engine:
            with pytest.raises(InvalidArgument, match="this AsyncEngine is already open"):
                await engine.open()
            assert await engine.run(ones_on_a_loop, 1) == 1
        with pytest.raises(Unavailable, match="closed") as raised:
            await engine.run(ones_on_a_loop, 1)
        assert raised.value.code == "SF-0012"
        await engine.close()

    asyncio.run(main())


def test_a_program_without_a_loop_is_told(url: str) -> None:
    with pytest.raises(InvalidArgument, match=r"needs a running event loop of asyncio"):
        AsyncEngine(url).open().send(None)


@workflow
async def naps_on_a_loop() -> str:
    await sleep(3600)
    return "awake"


def test_all_who_close_wait_until_it_is_closed(url: str) -> None:
    async def main() -> None:
        engine = await AsyncEngine(url).open()
        await engine.start(naps_on_a_loop)
        before = asyncio.all_tasks()
        await asyncio.gather(*[engine.close() for _ in range(5)])
        assert asyncio.all_tasks() <= before
        assert not any("drive" in repr(task) for task in asyncio.all_tasks())

    asyncio.run(main())


def test_a_close_that_is_cancelled_goes_on(url: str) -> None:
    async def main() -> None:
        engine = await AsyncEngine(url).open()
        await engine.start(naps_on_a_loop.options(workflow_id="nap"))
        closing = asyncio.create_task(engine.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await engine.close()
        with pytest.raises(Unavailable):
            await engine.run(ones_on_a_loop, 1)

    asyncio.run(main())


def test_opening_that_is_cancelled_leaves_nothing(url: str) -> None:
    async def main() -> None:
        engine = AsyncEngine(url)
        opening = asyncio.create_task(engine.open())
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        async with engine:
            assert await engine.run(ones_on_a_loop, 2) == 2

    asyncio.run(main())


@workflow
async def closes_its_engine() -> str:
    await _engines[-1].close(grace=1.0)
    return "closed"


_engines: list[AsyncEngine] = []


@pytest.mark.parametrize("how", ["run", "start"])
def test_code_may_close_the_engine_that_runs_it(how: str, url: str) -> None:
    async def main() -> None:
        engine = await AsyncEngine(url).open()
        _engines.append(engine)
        with pytest.raises(Unavailable):
            if how == "run":
                await engine.run(closes_its_engine)
            else:
                await (await engine.start(closes_its_engine))
        await engine.close()

    asyncio.run(main())


def test_an_engine_that_nobody_has_is_closed(url: str) -> None:
    async def main() -> None:
        engine = await AsyncEngine(url).open()
        assert await engine.run(ones_on_a_loop, 2) == 2
        tasks = asyncio.all_tasks()
        assert len(tasks) == 2
        with pytest.warns(ResourceWarning, match="was not closed"):
            del engine
            gc.collect()
        [other] = tasks - {asyncio.current_task()}
        await asyncio.wait_for(other, 60)

    asyncio.run(main())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="descriptors are counted in /proc")
def test_engines_that_are_closed_leave_no_descriptors() -> None:
    async def main() -> None:
        async with AsyncEngine("memory:") as engine:
            assert await (await engine.start(ones_on_a_loop, 2)) == 2

    def opened() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    asyncio.run(main())
    before = opened()
    for _ in range(20):
        asyncio.run(main())
    assert opened() < before + 10
