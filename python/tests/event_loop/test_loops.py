"""The event loop of an AsyncEngine: the engine refuses calls from other loops, and ends with its own."""

import asyncio
import gc
import os
import sys
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from watched_process import HANG_TIMEOUT

from stepfast import AsyncEngine, AsyncHandle, Error, InvalidArgument, Unavailable, sleep, step, workflow


@step
async def returns_one_on_loop() -> int:
    return 1


@workflow
async def counts_on_loop(n: int) -> int:
    return sum([await returns_one_on_loop() for _ in range(n)])


async def collect_error_codes(engine: AsyncEngine, handle: AsyncHandle[int]) -> list[str]:
    """Returns the classes and codes of the errors that calls of an engine raise."""
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: engine.start(counts_on_loop, 1),
        lambda: engine.run(counts_on_loop, 1),
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


WRONG_LOOP_ERROR = "InvalidArgument SF-0033"


def test_engine_refuses_calls_from_another_loop(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            handle = await engine.start(counts_on_loop.options(workflow_id="a"), 3)
            assert await handle == 3
            codes: list[str] = []
            other_thread = threading.Thread(
                target=lambda: codes.extend(asyncio.run(collect_error_codes(engine, handle)))
            )
            other_thread.start()
            await asyncio.to_thread(other_thread.join, 60)
            assert codes == [WRONG_LOOP_ERROR] * 13
            # the engine still works
            assert await engine.run(counts_on_loop, 2) == 2

    asyncio.run(main())


def test_engine_refuses_calls_from_thread_without_loop(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:

            def send_to_run() -> None:
                with pytest.raises(InvalidArgument, match="run_coroutine_threadsafe"):
                    engine.run(counts_on_loop, 1).send(None)

            await asyncio.to_thread(send_to_run)

            def run_on_loop_of_engine() -> int:
                return asyncio.run_coroutine_threadsafe(engine.run(counts_on_loop, 4), loop).result(60)

            loop = asyncio.get_running_loop()
            assert await asyncio.to_thread(run_on_loop_of_engine) == 4

    asyncio.run(main())


def test_engine_refuses_calls_from_a_later_loop(url: str) -> None:
    opened: list[tuple[AsyncEngine, AsyncHandle[int]]] = []

    async def open_first() -> None:
        engine = await AsyncEngine(url).open()
        opened.append((engine, await engine.start(counts_on_loop.options(workflow_id="a"), 3)))

    with pytest.warns(ResourceWarning, match="AsyncEngine was not closed"):
        asyncio.run(open_first())
    # the engine has ended with its loop, so nothing is left to close
    assert asyncio.run(collect_error_codes(*opened[0])) == [WRONG_LOOP_ERROR] * 12 + ["no error"]

    async def open_again() -> None:
        # the engine may open again on another loop
        async with opened[0][0] as engine:
            assert await engine.run(counts_on_loop, 2) == 2
            assert await (await engine.get("a")) == 3

    asyncio.run(open_again())


def test_engine_refuses_calls_unless_open(url: str) -> None:
    async def main() -> None:
        engine = AsyncEngine(url)
        with pytest.raises(InvalidArgument, match="not open"):
            await engine.run(counts_on_loop, 1)
        await engine.close()
        async with engine:
            with pytest.raises(InvalidArgument, match="this AsyncEngine is already open"):
                await engine.open()
            assert await engine.run(counts_on_loop, 1) == 1
        with pytest.raises(Unavailable, match="closed") as raised:
            await engine.run(counts_on_loop, 1)
        assert raised.value.code == "SF-0012"
        await engine.close()

    asyncio.run(main())


def test_open_is_refused_without_event_loop(url: str) -> None:
    with pytest.raises(InvalidArgument, match=r"needs a running event loop of asyncio"):
        AsyncEngine(url).open().send(None)


@workflow
async def sleeps_on_loop() -> str:
    await sleep(3600)
    return "awake"


def test_concurrent_closes_wait_until_engine_is_closed(url: str) -> None:
    async def main() -> None:
        engine = await AsyncEngine(url).open()
        await engine.start(sleeps_on_loop)
        before = asyncio.all_tasks()
        await asyncio.gather(*[engine.close() for _ in range(5)])
        assert asyncio.all_tasks() <= before
        assert not any("drive" in repr(task) for task in asyncio.all_tasks())

    asyncio.run(main())


def test_cancelled_close_continues(url: str) -> None:
    async def main() -> None:
        engine = await AsyncEngine(url).open()
        await engine.start(sleeps_on_loop.options(workflow_id="nap"))
        closing = asyncio.create_task(engine.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await engine.close()
        with pytest.raises(Unavailable):
            await engine.run(counts_on_loop, 1)

    asyncio.run(main())


def test_cancelled_open_leaves_engine_closed(url: str) -> None:
    async def main() -> None:
        engine = AsyncEngine(url)
        opening = asyncio.create_task(engine.open())
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        async with engine:
            assert await engine.run(counts_on_loop, 2) == 2

    asyncio.run(main())


def test_cancelled_open_may_outlast_its_loop(url: str) -> None:
    async def main() -> None:
        opening = asyncio.create_task(AsyncEngine(url).open())
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    threads = set(threading.enumerate())
    # a warning about an unclosed engine would be an error
    asyncio.run(main())
    for thread in set(threading.enumerate()) - threads:
        if thread.name == "stepfast-close":
            thread.join()
    gc.collect()


@workflow
async def closes_its_engine() -> str:
    await _engines[-1].close(grace=1.0)
    return "closed"


_engines: list[AsyncEngine] = []


@pytest.mark.parametrize("mode", ["run", "start"])
def test_workflow_may_close_its_own_engine(mode: str, url: str) -> None:
    async def main() -> None:
        engine = await AsyncEngine(url).open()
        _engines.append(engine)
        with pytest.raises(Unavailable):
            if mode == "run":
                await engine.run(closes_its_engine)
            else:
                await (await engine.start(closes_its_engine))
        await engine.close()

    asyncio.run(main())


def test_unreferenced_engine_is_closed(url: str) -> None:
    async def main() -> None:
        engine = await AsyncEngine(url).open()
        assert await engine.run(counts_on_loop, 2) == 2
        tasks = asyncio.all_tasks()
        assert len(tasks) == 2
        with pytest.warns(ResourceWarning, match="was not closed"):
            del engine
            gc.collect()
        [engine_task] = tasks - {asyncio.current_task()}
        await asyncio.wait_for(engine_task, 60)

    asyncio.run(main())


# an exception raised by a warning would hold the loop
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_abandoned_loop_is_collected_with_its_open_engine() -> None:
    async def main() -> None:
        engine = await AsyncEngine("memory:").open()
        assert await (await engine.start(counts_on_loop, 2)) == 2

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    abandoned_loop = weakref.ref(loop)
    del loop
    deadline = time.monotonic() + HANG_TIMEOUT
    # a thread of the engine may hold the loop for a moment
    while abandoned_loop() is not None and time.monotonic() < deadline:
        gc.collect()
    assert abandoned_loop() is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="descriptors are counted in /proc")
def test_closed_engines_leave_no_descriptors() -> None:
    async def main() -> None:
        async with AsyncEngine("memory:") as engine:
            assert await (await engine.start(counts_on_loop, 2)) == 2

    def count_descriptors() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    asyncio.run(main())
    before = count_descriptors()
    for _ in range(20):
        asyncio.run(main())
    assert count_descriptors() < before + 10
