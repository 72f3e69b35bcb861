"""Calls side by side, limits in time, and children that are awaited later."""

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
def child_of(n: int) -> int:
    return square(n) + 1


def two_steps(n: int) -> int:
    return square(square(n))


@workflow
def maps(many: int) -> list[int]:
    return stepfast.map(two_steps, range(many), concurrency=4)


@workflow
def maps_children(many: int) -> list[int]:
    return stepfast.map(child_of, range(many))


@workflow
def gathers() -> tuple[int, int]:
    return gather(lambda: square(3), lambda: square(4))


@workflow
def maps_and_naps(many: int) -> list[int]:
    def napping(n: int) -> int:
        sleep(0.02 * (n % 3))
        return square(n)

    return stepfast.map(napping, range(many), concurrency=3)


@workflow
def maps_and_fails(many: int) -> list[int]:
    return stepfast.map(lambda n: refuse(n) if n == 2 else square(n), range(many), concurrency=2)


@pytest.mark.parametrize("suspend_after", [5.0, 0.001])
def test_sync_code_goes_on_side_by_side(url: str, suspend_after: float) -> None:
    with Engine(url, suspend_after=suspend_after) as engine:
        for run in (engine.run, lambda *args: engine.start(*args).result()):
            assert run(maps, 10) == [n**4 for n in range(10)]
            assert run(gathers) == (9, 16)
            assert run(maps_children, 6) == [n * n + 1 for n in range(6)]
            assert run(maps_and_naps, 7) == [n * n for n in range(7)]
            assert run(maps, 0) == []
            with pytest.raises(ValueError, match="refused 2"):
                run(maps_and_fails, 5)
    assert stepfast.map(square, [1, 2]) == [1, 4]
    assert gather(lambda: square(3)) == (9,)


@step
def meet(n: int) -> int:
    barrier.wait(timeout=60)
    return n


barrier = threading.Barrier(4)


@workflow
def meets() -> list[int]:
    return stepfast.map(meet, range(4))


def test_bodies_of_a_map_run_at_the_same_time(url: str) -> None:
    with Engine(url, max_threads=1) as engine:
        assert engine.run(meets) == [0, 1, 2, 3]
        assert engine.start(meets).result() == [0, 1, 2, 3]


@workflow
def maps_over_a_queue(many: int) -> list[int]:
    placed = child_of.options(queue="jobs", attributes={"of": "map"})
    return stepfast.map(placed, range(many), concurrency=7, progress=tell)


@workflow
async def child_of_async(n: int) -> int:
    return await square_async(n) + 1


@workflow
async def maps_over_a_queue_async(many: int) -> list[int]:
    placed = child_of_async.options(queue="jobs", attributes={"of": "map"})
    return await stepfast.map(placed, range(many), concurrency=50, progress=tell)


told: list[tuple[int, int]] = []


def tell(done: int, total: int) -> None:
    told.append((done, total))


def test_a_map_goes_over_a_queue(url: str) -> None:
    async def acts() -> None:
        async with AsyncEngine(url, queues=[Queue("jobs", concurrency=5)]) as engine:
            for over in (maps_over_a_queue, maps_over_a_queue_async):
                told.clear()
                assert await engine.run(over, 40) == [n * n + 1 for n in range(40)]
                # not for what a replay repeats
                assert told == sorted(set(told))
                assert (told[0], told[-1]) == ((1, 40), (40, 40))
            assert await engine.count(queue="jobs", attributes={"of": "map"}, status="completed") == 80

    asyncio.run(acts())


@workflow
async def maps_few_at_a_time(many: int) -> int:
    most = 0

    async def counted(n: int) -> int:
        nonlocal most
        if n % 50 == 0:
            most = max(most, sum(isinstance(it, asyncio.Task) and not it.done() for it in gc.get_objects()))
        return await square_async(n)

    assert await stepfast.map(counted, range(many), concurrency=4) == [n * n for n in range(many)]
    return most


def test_what_is_not_begun_costs_nothing(url: str) -> None:
    async def acts() -> None:
        async with AsyncEngine(url) as engine:
            # beside its own four there are a few of the test's
            assert 4 <= await engine.run(maps_few_at_a_time, 300) < 20

    asyncio.run(acts())


@workflow
def maps_with_a_broken_bar(many: int) -> list[int]:
    def tell(done: int, total: int) -> None:
        raise OSError("no terminal")

    return stepfast.map(square, range(many), progress=tell)


def test_what_progress_raises_fails_the_map(url: str) -> None:
    with Engine(url) as engine, pytest.raises(OSError, match="no terminal"):
        engine.run(maps_with_a_broken_bar, 3)


@workflow
async def gathers_async(n: int) -> tuple[int, str]:
    async def named(n: int) -> str:
        return f"{await square_async(n)}"

    return await gather(square_async(n), named(n + 1))


@workflow
async def maps_async(many: int) -> list[int]:
    return await stepfast.map(square_async, range(many), concurrency=3)


@workflow
async def completes(delays: list[float]) -> list[int]:
    async def one(n: int, delay: float) -> int:
        await sleep(delay)
        return await square_async(n)

    order = []
    async for task in as_completed([one(n, delay) for n, delay in enumerate(delays)]):
        order.append(await task)
    return order


@workflow
async def fails_async(n: int) -> tuple[int, ...]:
    async def slow() -> int:
        await sleep(hours=1)
        return 0

    return await gather(slow(), refuse_async(n), slow())


@workflow
async def times_out(limit: float) -> str:
    try:
        async with stepfast.timeout(limit):
            await sleep(hours=1)
    except TimeoutError:
        return f"late {await square_async(2)}"
    return "in time"


@workflow
async def is_in_time(n: int) -> int:
    async with stepfast.timeout(3600) as limit:
        squared = await square_async(n)
    assert not limit.expired()
    return squared + await wait_for(square_async(n), 3600)


@workflow
async def waits_for(n: int) -> int:
    try:
        return await wait_for(child_of.in_thread(n), 3600) + await wait_for(nap(), 0.05)
    except TimeoutError:
        return -1


async def nap() -> int:
    await sleep(hours=2)
    return 0


@pytest.mark.parametrize("suspend_after", [5.0, 0.001])
def test_async_code_goes_on_side_by_side(url: str, suspend_after: float) -> None:
    async def main() -> None:
        async with AsyncEngine(url, suspend_after=suspend_after) as engine:

            async def started(*args: object) -> object:
                return await (await engine.start(*args))  # type: ignore[call-overload]

            for run in (engine.run, started):
                assert await run(gathers_async, 3) == (9, "16")
                assert await run(maps_async, 7) == [n * n for n in range(7)]
                assert await run(completes, [0.09, 0.01, 0.05]) == [1, 4, 0]
                with pytest.raises(ValueError, match="refused 5"):
                    await run(fails_async, 5)
                assert await run(times_out, 0.05) == "late 4"
                assert await run(is_in_time, 3) == 18
                assert await run(waits_for, 3) == -1

        assert await gather(square_async(1), square_async(2)) == (1, 4)
        with pytest.raises(TimeoutError):
            async with stepfast.timeout(0.01):
                await asyncio.Event().wait()

    asyncio.run(main())


@workflow
def limits_in_vain() -> None:
    code = limited()
    try:
        code.send(None)
    finally:
        code.close()


async def limited() -> None:
    async with stepfast.timeout(1):
        pass


def test_sync_workflows_have_no_timeout(url: str) -> None:
    with Engine(url) as engine, pytest.raises(InvalidArgument, match=r"@step\(timeout=\.\.\.\)"):
        engine.run(limits_in_vain)


@workflow
def starts_children(n: int) -> list[object]:
    first, second = child_of.start(n), child_of.start(n + 1)
    detached = child_of.start_detached(n + 2)
    return [second.result(), first.result(), first.workflow_id, detached]


@workflow
async def child_async(n: int) -> int:
    return await square_async(n) + 1


@workflow
async def starts_children_async(n: int) -> list[object]:
    first, second = await child_async.start(n), await child_async.start(n + 1)
    detached = await child_async.start_detached(n + 2)
    return [await second, await first.result(), first.workflow_id, detached]


def test_children_are_awaited_later_or_not_at_all(url: str) -> None:
    with Engine(url) as engine:
        second, first, workflow_id, detached = engine.start(starts_children, 2).result()
        assert (second, first) == (10, 5)
        assert engine.get(str(workflow_id)).result() == 5
        assert engine.get(str(detached)).result() == 17
    with pytest.raises(InvalidArgument, match="engine.start"):
        child_of.start(1)

    async def main() -> None:
        async with AsyncEngine(url) as engine:
            second, first, workflow_id, detached = await engine.run(starts_children_async, 2)
            assert (second, first) == (10, 5)
            assert await (await engine.get(str(workflow_id))) == 5
            assert await (await engine.get(str(detached))) == 17

    asyncio.run(main())


@workflow
def descends(depth: int) -> int:
    return square(1) if depth == 0 else descends(depth - 1) + 1


@pytest.mark.parametrize("threads", [1, 3])
def test_parents_need_no_thread_of_their_own(url: str, threads: int) -> None:
    with Engine(url, max_threads=threads) as engine:
        assert engine.start(descends, 3).result() == 4
        # deeper than a thread carries
        assert engine.start(descends, 20).result() == 21
        assert engine.run(descends, 20) == 21
        handles = [engine.start(descends, 2) for _ in range(10 * threads)]
        assert engine.results(handles) == [3] * (10 * threads)


@workflow
async def hangs_inline(n: int) -> None:
    begun.set()
    await asyncio.Event().wait()


begun = asyncio.Event()


def test_an_execution_that_its_caller_runs_can_be_cancelled(url: str) -> None:
    async def main() -> None:
        global begun
        begun = asyncio.Event()
        async with AsyncEngine(url) as engine:
            caller = asyncio.create_task(engine.run(hangs_inline.options(workflow_id="h"), 1))
            await begun.wait()
            handle = await engine.start(hangs_inline.options(workflow_id="h"), 1)
            assert await handle.cancel()
            with pytest.raises(stepfast.WorkflowCancelled):
                await caller
            assert caller.cancelling() == 0

    asyncio.run(main())


def test_time_is_measured_from_the_first_run(url: str) -> None:
    began = time.monotonic()

    async def main() -> None:
        async with AsyncEngine(url, suspend_after=0.01) as engine:
            assert await (await engine.start(times_out, 0.2)) == "late 4"

    asyncio.run(main())
    assert time.monotonic() - began >= 0.2
