"""Concurrent calls, limits in time, and children that are awaited later."""

import asyncio
import gc
import threading
import time

import pytest

import stepfast
from stepfast import (
    AsyncEngine,
    Engine,
    InvalidArgument,
    Queue,
    as_completed,
    gather,
    sleep,
    step,
    wait_for,
    workflow,
)


@step
def square(n: int) -> int:
    return n * n


@step
async def square_async(n: int) -> int:
    return n * n


@step
def refuse(n: int) -> int:
    raise ValueError(f"refused {n}")


@step
async def refuse_async(n: int) -> int:
    raise ValueError(f"refused {n}")


@workflow
def square_plus_one(n: int) -> int:
    return square(n) + 1


def square_twice(n: int) -> int:
    return square(square(n))


@workflow
def maps_square_twice(count: int) -> list[int]:
    return stepfast.map(square_twice, range(count), concurrency=4)


@workflow
def maps_children(count: int) -> list[int]:
    return stepfast.map(square_plus_one, range(count))


@workflow
def gathers_squares() -> tuple[int, int]:
    return gather(lambda: square(3), lambda: square(4))


@workflow
def maps_with_sleeps(count: int) -> list[int]:
    def sleep_and_square(n: int) -> int:
        sleep(0.02 * (n % 3))
        return square(n)

    return stepfast.map(sleep_and_square, range(count), concurrency=3)


@workflow
def maps_with_failing_step(count: int) -> list[int]:
    return stepfast.map(lambda n: refuse(n) if n == 2 else square(n), range(count), concurrency=2)


@pytest.mark.parametrize("suspend_after", [5.0, 0.001])
def test_sync_branches_run_concurrently(url: str, suspend_after: float) -> None:
    with Engine(url, suspend_after=suspend_after) as engine:
        for run in (engine.run, lambda *args: engine.start(*args).result()):
            assert run(maps_square_twice, 10) == [n**4 for n in range(10)]
            assert run(gathers_squares) == (9, 16)
            assert run(maps_children, 6) == [n * n + 1 for n in range(6)]
            assert run(maps_with_sleeps, 7) == [n * n for n in range(7)]
            assert run(maps_square_twice, 0) == []
            with pytest.raises(ValueError, match="refused 2"):
                run(maps_with_failing_step, 5)
    assert stepfast.map(square, [1, 2]) == [1, 4]
    assert gather(lambda: square(3)) == (9,)


@step
def waits_at_barrier(n: int) -> int:
    barrier.wait(timeout=60)
    return n


barrier = threading.Barrier(4)


@workflow
def maps_waits_at_barrier() -> list[int]:
    return stepfast.map(waits_at_barrier, range(4))


def test_bodies_of_map_run_concurrently(url: str) -> None:
    with Engine(url, max_threads=1) as engine:
        assert engine.run(maps_waits_at_barrier) == [0, 1, 2, 3]
        assert engine.start(maps_waits_at_barrier).result() == [0, 1, 2, 3]


@workflow
def maps_over_queue(count: int) -> list[int]:
    placed = square_plus_one.options(queue="jobs", attributes={"of": "map"})
    return stepfast.map(placed, range(count), concurrency=7, progress=report_progress)


@workflow
async def square_plus_one_async(n: int) -> int:
    return await square_async(n) + 1


@workflow
async def maps_over_queue_async(count: int) -> list[int]:
    placed = square_plus_one_async.options(queue="jobs", attributes={"of": "map"})
    return await stepfast.map(placed, range(count), concurrency=50, progress=report_progress)


reported: list[tuple[int, int]] = []


def report_progress(done: int, total: int) -> None:
    reported.append((done, total))


def test_map_starts_its_children_in_a_queue(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url, queues=[Queue("jobs", concurrency=5)]) as engine:
            for program in (maps_over_queue, maps_over_queue_async):
                reported.clear()
                assert await engine.run(program, 40) == [n * n + 1 for n in range(40)]
                # a replay reports no progress for the outcomes that it repeats
                assert reported == sorted(set(reported))
                assert (reported[0], reported[-1]) == ((1, 40), (40, 40))
            assert await engine.count(queue="jobs", attributes={"of": "map"}, status="completed") == 80

    asyncio.run(main())


@workflow
async def maps_four_at_a_time(count: int) -> int:
    max_tasks = 0

    async def count_tasks(n: int) -> int:
        nonlocal max_tasks
        if n % 50 == 0:
            pending = sum(isinstance(it, asyncio.Task) and not it.done() for it in gc.get_objects())
            max_tasks = max(max_tasks, pending)
        return await square_async(n)

    assert await stepfast.map(count_tasks, range(count), concurrency=4) == [n * n for n in range(count)]
    return max_tasks


def test_map_creates_tasks_for_running_calls_only(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            # beside the four tasks of the map, the test has a few of its own
            assert 4 <= await engine.run(maps_four_at_a_time, 300) < 20

    asyncio.run(main())


@workflow
def maps_with_failing_progress(count: int) -> list[int]:
    def report_progress(done: int, total: int) -> None:
        raise OSError("no terminal")

    return stepfast.map(square, range(count), progress=report_progress)


def test_error_of_progress_function_fails_the_map(url: str) -> None:
    with Engine(url) as engine, pytest.raises(OSError, match="no terminal"):
        engine.run(maps_with_failing_progress, 3)


@workflow
async def gathers_squares_async(n: int) -> tuple[int, str]:
    async def square_as_text(n: int) -> str:
        return f"{await square_async(n)}"

    return await gather(square_async(n), square_as_text(n + 1))


@workflow
async def maps_squares_async(count: int) -> list[int]:
    return await stepfast.map(square_async, range(count), concurrency=3)


@workflow
async def squares_as_completed(delays: list[float]) -> list[int]:
    async def sleep_and_square(n: int, delay: float) -> int:
        await sleep(delay)
        return await square_async(n)

    order = []
    async for task in as_completed([sleep_and_square(n, delay) for n, delay in enumerate(delays)]):
        order.append(await task)
    return order


@workflow
async def gathers_failing_step(n: int) -> tuple[int, ...]:
    async def sleep_one_hour() -> int:
        await sleep(hours=1)
        return 0

    return await gather(sleep_one_hour(), refuse_async(n), sleep_one_hour())


@workflow
async def times_out(limit: float) -> str:
    try:
        async with stepfast.timeout(limit):
            await sleep(hours=1)
    except TimeoutError:
        return f"late {await square_async(2)}"
    return "in time"


@workflow
async def ends_before_timeouts(n: int) -> int:
    async with stepfast.timeout(3600) as limit:
        squared = await square_async(n)
    assert not limit.expired()
    return squared + await wait_for(square_async(n), 3600)


@workflow
async def times_out_in_wait_for(n: int) -> int:
    try:
        return await wait_for(square_plus_one.in_thread(n), 3600) + await wait_for(sleep_two_hours(), 0.05)
    except TimeoutError:
        return -1


async def sleep_two_hours() -> int:
    await sleep(hours=2)
    return 0


@pytest.mark.parametrize("suspend_after", [5.0, 0.001])
def test_async_branches_run_concurrently(url: str, suspend_after: float) -> None:
    async def main() -> None:
        async with AsyncEngine(url, suspend_after=suspend_after) as engine:

            async def start_and_await(*args: object) -> object:
                return await (await engine.start(*args))  # type: ignore[call-overload]

            for run in (engine.run, start_and_await):
                assert await run(gathers_squares_async, 3) == (9, "16")
                assert await run(maps_squares_async, 7) == [n * n for n in range(7)]
                assert await run(squares_as_completed, [0.09, 0.01, 0.05]) == [1, 4, 0]
                with pytest.raises(ValueError, match="refused 5"):
                    await run(gathers_failing_step, 5)
                assert await run(times_out, 0.05) == "late 4"
                assert await run(ends_before_timeouts, 3) == 18
                assert await run(times_out_in_wait_for, 3) == -1

        assert await gather(square_async(1), square_async(2)) == (1, 4)
        with pytest.raises(TimeoutError):
            async with stepfast.timeout(0.01):
                await asyncio.Event().wait()

    asyncio.run(main())


@workflow
def enters_timeout_in_sync_code() -> None:
    code = enter_timeout()
    try:
        code.send(None)
    finally:
        code.close()


async def enter_timeout() -> None:
    async with stepfast.timeout(1):
        pass


def test_timeout_in_sync_workflow_is_refused(url: str) -> None:
    with Engine(url) as engine, pytest.raises(InvalidArgument, match=r"@step\(timeout=\.\.\.\)"):
        engine.run(enters_timeout_in_sync_code)


@workflow
def starts_children(n: int) -> list[object]:
    first, second = square_plus_one.start(n), square_plus_one.start(n + 1)
    detached = square_plus_one.start_detached(n + 2)
    return [second.result(), first.result(), first.workflow_id, detached]


@workflow
async def square_plus_one_on_loop(n: int) -> int:
    return await square_async(n) + 1


@workflow
async def starts_children_async(n: int) -> list[object]:
    first, second = await square_plus_one_on_loop.start(n), await square_plus_one_on_loop.start(n + 1)
    detached = await square_plus_one_on_loop.start_detached(n + 2)
    return [await second, await first.result(), first.workflow_id, detached]


def test_started_children_are_awaited_later_or_never(url: str) -> None:
    with Engine(url) as engine:
        second, first, workflow_id, detached = engine.start(starts_children, 2).result()
        assert (second, first) == (10, 5)
        assert engine.get(str(workflow_id)).result() == 5
        assert engine.get(str(detached)).result() == 17
    with pytest.raises(InvalidArgument, match="engine.start"):
        square_plus_one.start(1)

    async def main() -> None:
        async with AsyncEngine(url) as engine:
            second, first, workflow_id, detached = await engine.run(starts_children_async, 2)
            assert (second, first) == (10, 5)
            assert await (await engine.get(str(workflow_id))) == 5
            assert await (await engine.get(str(detached))) == 17

    asyncio.run(main())


@workflow
def calls_itself_as_child(depth: int) -> int:
    return square(1) if depth == 0 else calls_itself_as_child(depth - 1) + 1


@pytest.mark.parametrize("threads", [1, 3])
def test_waiting_parents_occupy_no_threads(url: str, threads: int) -> None:
    with Engine(url, max_threads=threads) as engine:
        assert engine.start(calls_itself_as_child, 3).result() == 4
        # deeper than the stack of one thread allows
        assert engine.start(calls_itself_as_child, 20).result() == 21
        assert engine.run(calls_itself_as_child, 20) == 21
        handles = [engine.start(calls_itself_as_child, 2) for _ in range(10 * threads)]
        assert engine.results(handles) == [3] * (10 * threads)


@workflow
async def waits_endlessly_inline(n: int) -> None:
    body_has_begun.set()
    await asyncio.Event().wait()


body_has_begun = asyncio.Event()


def test_inline_execution_can_be_cancelled(url: str) -> None:
    async def main() -> None:
        global body_has_begun
        body_has_begun = asyncio.Event()
        async with AsyncEngine(url) as engine:
            caller = asyncio.create_task(engine.run(waits_endlessly_inline.options(workflow_id="h"), 1))
            await body_has_begun.wait()
            handle = await engine.start(waits_endlessly_inline.options(workflow_id="h"), 1)
            assert await handle.cancel()
            with pytest.raises(stepfast.WorkflowCancelled):
                await caller
            assert caller.cancelling() == 0

    asyncio.run(main())


def test_timeout_counts_from_the_first_run(url: str) -> None:
    started_at = time.monotonic()

    async def main() -> None:
        async with AsyncEngine(url, suspend_after=0.01) as engine:
            assert await (await engine.start(times_out, 0.2)) == "late 4"

    asyncio.run(main())
    assert time.monotonic() - started_at >= 0.2
