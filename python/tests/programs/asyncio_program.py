"""Workflows of all shapes that asyncio knows: what they return tells whether every outcome was delivered to
the call that it belongs to, also over crashes."""

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator

import stepfast
from stepfast import AsyncEngine, sleep, step, workflow

#: Set by the victim: a body dies with this probability.
KILL = float(os.environ.get("KILL", "0"))
_random = random.Random(os.environ.get("SEED"))


async def pause() -> None:
    if _random.random() < 0.7:
        await asyncio.sleep(_random.random() * 0.01)
    if _random.random() < KILL:
        os.kill(os.getpid(), signal.SIGKILL)


@step
async def twice(n: int) -> list[int]:
    await pause()
    return [n, 2 * n]


@step
async def again(n: int) -> list[int]:
    await pause()
    return [n, 3 * n]


@step
async def fails(n: int) -> None:
    await pause()
    raise LookupError(f"no {n}")


@step
def twice_here(n: int) -> list[int]:
    time.sleep(_random.random() * 0.01)
    if _random.random() < KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    return [n, 2 * n]


@step
def again_here(n: int) -> list[int]:
    return [n, 3 * n]


async def both(n: int) -> list[list[int]]:
    return [await twice(n), await again(n)]


@workflow
async def in_a_row(n: int) -> list[list[int]]:
    return [await twice(i) for i in range(n)]


@workflow
async def gathered(n: int) -> list[list[int]]:
    return await asyncio.gather(*[twice(i) for i in range(n)])


@workflow
async def gathered_branches(n: int) -> list[list[list[int]]]:
    return await asyncio.gather(*[both(i) for i in range(n)])


@workflow
async def nested(n: int) -> list[list[list[list[int]]]]:
    async def inner(k: int) -> list[list[list[int]]]:
        return await asyncio.gather(*[both(10 * k + i) for i in range(n)])

    return await asyncio.gather(*[inner(k) for k in range(3)])


@workflow
async def grouped(n: int) -> list[list[list[int]]]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(both(i)) for i in range(n)]
    return [task.result() for task in tasks]


@workflow
async def tasks(n: int) -> list[list[list[int]]]:
    made = [asyncio.create_task(both(i)) for i in range(n)]
    return [await task for task in reversed(made)][::-1]


@workflow
async def made_before(n: int) -> list[list[int]]:
    calls = [twice(i) for i in range(n)]
    return [await call for call in reversed(calls)][::-1]


@workflow
async def pool(n: int) -> list[list[list[int]]]:
    queue: asyncio.Queue[int] = asyncio.Queue()
    for i in range(n):
        queue.put_nowait(i)
    results: dict[int, list[list[int]]] = {}

    async def worker() -> None:
        while not queue.empty():
            i = queue.get_nowait()
            results[i] = await both(i)

    await asyncio.gather(*[worker() for _ in range(4)])
    return [results[i] for i in range(n)]


@workflow
async def fed_pool(n: int) -> list[list[list[int]]]:
    queue: asyncio.Queue[int | None] = asyncio.Queue(2)
    results: dict[int, list[list[int]]] = {}

    async def worker() -> None:
        while (i := await queue.get()) is not None:
            results[i] = await both(i)

    async def feeder() -> None:
        for i in range(n):
            await twice(100 + i)
            await queue.put(i)
        for _ in range(3):
            await queue.put(None)

    await asyncio.gather(feeder(), *[worker() for _ in range(3)])
    return [results[i] for i in range(n)]


@workflow
async def limited(n: int) -> list[list[list[int]]]:
    semaphore = asyncio.Semaphore(3)

    async def one(i: int) -> list[list[int]]:
        async with semaphore:
            return await both(i)

    return await asyncio.gather(*[one(i) for i in range(n)])


@workflow
async def as_they_come(n: int) -> list[list[list[int]]]:
    made = [asyncio.create_task(both(i)) for i in range(n)]
    results = [await done for done in asyncio.as_completed(made)]
    # what comes first decides what is called next
    first = await again(results[0][0][0])
    assert first[0] == results[0][0][0]
    return sorted(results)


@workflow
async def first_of(n: int) -> list[list[list[int]]]:
    waiting = {asyncio.create_task(both(i)) for i in range(n)}
    results = []
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in sorted(done, key=lambda task: task.result()):
            results.append(task.result())
            assert await twice(results[-1][0][0]) == results[-1][0]
    return sorted(results)


@workflow
async def gated(n: int) -> list[list[list[int]]]:
    gate = asyncio.Event()

    async def behind(i: int) -> list[list[int]]:
        await gate.wait()
        return await both(i)

    async def opens() -> None:
        await twice(1000)
        gate.set()

    return (await asyncio.gather(opens(), *[behind(i) for i in range(n)]))[1:]


@workflow
async def naps(n: int) -> list[list[list[int]]]:
    async def one(i: int) -> list[list[int]]:
        await sleep(0.001 * (i % 3))
        return await both(i)

    return await asyncio.gather(*[one(i) for i in range(n)])


@workflow
async def timed(n: int) -> list[list[list[int]]]:
    """What a durable limit has cut off is cut off again; what it has not is there."""
    done = []
    for i in range(n):
        value = None
        with contextlib.suppress(TimeoutError):
            async with stepfast.timeout(0.004):
                value = await (twice(i) if i % 3 else sleep(days=1))
        done.append([value if value is not None else await twice(i), await again(i)])
    return done


@workflow
async def cleaned(n: int) -> list[list[list[int]]]:
    done = []
    for i in range(n):
        try:
            try:
                await fails(i)
            finally:
                first = await twice(i)
        except LookupError as error:
            assert str(error) == f"no {i}"
            done.append([first, await again(i)])
    return done


@workflow
async def caught(n: int) -> list[list[list[int]]]:
    done = []
    for i in range(n):
        try:
            await fails(i)
        except:  # noqa: E722 # what unwinds code comes by here, too
            done.append(await both(i))
    return done


@contextlib.asynccontextmanager
async def around(n: int, done: list[list[int]]) -> AsyncIterator[None]:
    done.append(await twice(n))
    try:
        yield
    finally:
        done.append(await again(n))


@workflow
async def managed(n: int) -> list[list[list[int]]]:
    async def one(i: int) -> list[list[int]]:
        done: list[list[int]] = []
        with contextlib.suppress(LookupError):
            async with around(i, done):
                await fails(i)
        return done

    return await asyncio.gather(*[one(i) for i in range(n)])


@workflow
async def generated(n: int) -> list[list[list[int]]]:
    def calls() -> Iterator[object]:
        for i in range(n):
            yield both(i)

    return [await call for call in calls()]


@workflow
async def generated_on_the_loop(n: int) -> list[list[list[int]]]:
    async def pairs() -> AsyncIterator[list[list[int]]]:
        for i in range(n):
            yield await both(i)

    return [pair async for pair in pairs()]


@workflow
async def mapped(n: int) -> list[list[list[int]]]:
    return await stepfast.map(both, range(n), concurrency=2)


@workflow
async def all_waited_for(n: int) -> list[list[list[int]]]:
    made = [asyncio.create_task(both(i)) for i in range(n)]
    left = set(made)
    while left:
        _, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
    return [task.result() for task in made]


@workflow
async def of_children(n: int) -> list[list[list[int]]]:
    return list(await stepfast.gather(*[child_of_many(i) for i in range(n)]))


@workflow
async def child_of_many(n: int) -> list[list[int]]:
    return await both(n)


@workflow
def in_threads(n: int) -> list[list[list[int]]]:
    return stepfast.map(lambda i: [twice_here(i), again_here(i)], range(n), concurrency=3)


PLAIN = [in_a_row, gathered, made_before]
PAIRS = [
    gathered_branches,
    grouped,
    tasks,
    pool,
    fed_pool,
    limited,
    as_they_come,
    first_of,
    gated,
    naps,
    timed,
    cleaned,
    caught,
    managed,
    generated,
    generated_on_the_loop,
    mapped,
    all_waited_for,
    of_children,
    in_threads,
]
N = 6


def expected(name: str) -> object:
    pair = lambda i: [[i, 2 * i], [i, 3 * i]]  # noqa: E731
    if name == "nested":
        return [[pair(10 * k + i) for i in range(N)] for k in range(3)]
    if name in {workflow.name for workflow in PLAIN}:
        return [[i, 2 * i] for i in range(N)]
    return [pair(i) for i in range(N)]


async def run_and_cancelled(engine: AsyncEngine, workflow_id: str, program: object) -> object:
    """Runs a program in this task's place, and loses patience."""
    running = asyncio.create_task(engine.run(program.options(workflow_id=workflow_id), N))  # type: ignore[call-overload]
    await asyncio.sleep(_random.random() * 0.02)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        return await running
    # it goes on by itself, unless it had not begun
    handle = await engine.start(program.options(workflow_id=workflow_id), N)  # type: ignore[call-overload]
    return await handle


async def main(url: str, times: int) -> None:
    """Runs all of them, under ids, until they have ended."""
    async with AsyncEngine(url, suspend_after=0.002) as engine:
        handles = {}
        for program in [*PLAIN, *PAIRS, nested]:
            for i in range(times):
                workflow_id = f"{program.name}-{i}"
                handles[workflow_id] = await engine.start(program.options(workflow_id=workflow_id), N)
        runs = {
            f"{program.name}-run": asyncio.create_task(
                run_and_cancelled(engine, f"{program.name}-run", program)
            )
            for program in [*PLAIN, *PAIRS, nested]
        }
        for workflow_id, handle in handles.items():
            check(workflow_id, await handle.result())
        for workflow_id, run in runs.items():
            check(workflow_id, await run)


def check(workflow_id: str, output: object) -> None:
    wanted = expected(workflow_id.rsplit("-", 1)[0])
    assert output == wanted, f"{workflow_id}: {output}, not {wanted}"


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
