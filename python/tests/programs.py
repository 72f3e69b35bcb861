"""Workflows of all shapes that asyncio knows: what they return tells whether every outcome was delivered to
the call that it belongs to, also over crashes."""

import asyncio
import os
import random
import signal
import sys

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
]
N = 6


def expected(name: str) -> object:
    pair = lambda i: [[i, 2 * i], [i, 3 * i]]  # noqa: E731
    if name == "nested":
        return [[pair(10 * k + i) for i in range(N)] for k in range(3)]
    if name in {workflow.name for workflow in PLAIN}:
        return [[i, 2 * i] for i in range(N)]
    return [pair(i) for i in range(N)]


async def main(url: str, times: int) -> None:
    """Runs all of them, under ids, until they have ended."""
    async with AsyncEngine(url, suspend_after=0.002) as engine:
        handles = {}
        for program in [*PLAIN, *PAIRS, nested]:
            for i in range(times):
                workflow_id = f"{program.name}-{i}"
                handles[workflow_id] = await engine.start(program, N, workflow_id=workflow_id)
        for workflow_id, handle in handles.items():
            output = await handle.result()
            wanted = expected(workflow_id.rsplit("-", 1)[0])
            assert output == wanted, f"{workflow_id}: {output}, not {wanted}"


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
