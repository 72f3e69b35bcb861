"""Workflows in all shapes of asyncio. An output shows whether the engine delivered each outcome to its call,
also after crashes."""

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

#: The probability with which a step body kills its process.
KILL_PROBABILITY = float(os.environ.get("KILL_PROBABILITY", "0"))
_random = random.Random(os.environ.get("SEED"))


async def pause_or_die() -> None:
    if _random.random() < 0.7:
        await asyncio.sleep(_random.random() * 0.01)
    if _random.random() < KILL_PROBABILITY:
        os.kill(os.getpid(), signal.SIGKILL)


@step
async def double(n: int) -> list[int]:
    await pause_or_die()
    return [n, 2 * n]


@step
async def triple(n: int) -> list[int]:
    await pause_or_die()
    return [n, 3 * n]


@step
async def raise_lookup_error(n: int) -> None:
    await pause_or_die()
    raise LookupError(f"no {n}")


@step
def double_in_thread(n: int) -> list[int]:
    time.sleep(_random.random() * 0.01)
    if _random.random() < KILL_PROBABILITY:
        os.kill(os.getpid(), signal.SIGKILL)
    return [n, 2 * n]


@step
def triple_in_thread(n: int) -> list[int]:
    return [n, 3 * n]


async def double_and_triple(n: int) -> list[list[int]]:
    return [await double(n), await triple(n)]


@workflow
async def calls_in_sequence(n: int) -> list[list[int]]:
    return [await double(i) for i in range(n)]


@workflow
async def gathers_calls(n: int) -> list[list[int]]:
    return await asyncio.gather(*[double(i) for i in range(n)])


@workflow
async def gathers_branches(n: int) -> list[list[list[int]]]:
    return await asyncio.gather(*[double_and_triple(i) for i in range(n)])


@workflow
async def nests_gathers(n: int) -> list[list[list[list[int]]]]:
    async def gather_pairs(k: int) -> list[list[list[int]]]:
        return await asyncio.gather(*[double_and_triple(10 * k + i) for i in range(n)])

    return await asyncio.gather(*[gather_pairs(k) for k in range(3)])


@workflow
async def groups_tasks(n: int) -> list[list[list[int]]]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(double_and_triple(i)) for i in range(n)]
    return [task.result() for task in tasks]


@workflow
async def awaits_tasks_in_reverse(n: int) -> list[list[list[int]]]:
    tasks = [asyncio.create_task(double_and_triple(i)) for i in range(n)]
    return [await task for task in reversed(tasks)][::-1]


@workflow
async def awaits_calls_in_reverse(n: int) -> list[list[int]]:
    calls = [double(i) for i in range(n)]
    return [await call for call in reversed(calls)][::-1]


@workflow
async def runs_worker_pool(n: int) -> list[list[list[int]]]:
    queue: asyncio.Queue[int] = asyncio.Queue()
    for i in range(n):
        queue.put_nowait(i)
    results: dict[int, list[list[int]]] = {}

    async def work() -> None:
        while not queue.empty():
            i = queue.get_nowait()
            results[i] = await double_and_triple(i)

    await asyncio.gather(*[work() for _ in range(4)])
    return [results[i] for i in range(n)]


@workflow
async def feeds_worker_pool(n: int) -> list[list[list[int]]]:
    queue: asyncio.Queue[int | None] = asyncio.Queue(2)
    results: dict[int, list[list[int]]] = {}

    async def work() -> None:
        while (i := await queue.get()) is not None:
            results[i] = await double_and_triple(i)

    async def feed() -> None:
        for i in range(n):
            await double(100 + i)
            await queue.put(i)
        for _ in range(3):
            await queue.put(None)

    await asyncio.gather(feed(), *[work() for _ in range(3)])
    return [results[i] for i in range(n)]


@workflow
async def limits_by_semaphore(n: int) -> list[list[list[int]]]:
    semaphore = asyncio.Semaphore(3)

    async def call_in_limit(i: int) -> list[list[int]]:
        async with semaphore:
            return await double_and_triple(i)

    return await asyncio.gather(*[call_in_limit(i) for i in range(n)])


@workflow
async def takes_as_completed(n: int) -> list[list[list[int]]]:
    tasks = [asyncio.create_task(double_and_triple(i)) for i in range(n)]
    results = [await done for done in asyncio.as_completed(tasks)]
    # the first result decides which call follows
    first = await triple(results[0][0][0])
    assert first[0] == results[0][0][0]
    return sorted(results)


@workflow
async def waits_for_first_completed(n: int) -> list[list[list[int]]]:
    pending = {asyncio.create_task(double_and_triple(i)) for i in range(n)}
    results = []
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in sorted(done, key=lambda task: task.result()):
            results.append(task.result())
            assert await double(results[-1][0][0]) == results[-1][0]
    return sorted(results)


@workflow
async def waits_for_event(n: int) -> list[list[list[int]]]:
    event = asyncio.Event()

    async def call_after_event(i: int) -> list[list[int]]:
        await event.wait()
        return await double_and_triple(i)

    async def set_event() -> None:
        await double(1000)
        event.set()

    return (await asyncio.gather(set_event(), *[call_after_event(i) for i in range(n)]))[1:]


@workflow
async def sleeps_in_branches(n: int) -> list[list[list[int]]]:
    async def sleep_and_call(i: int) -> list[list[int]]:
        await sleep(0.001 * (i % 3))
        return await double_and_triple(i)

    return await asyncio.gather(*[sleep_and_call(i) for i in range(n)])


@workflow
async def limits_calls_in_time(n: int) -> list[list[list[int]]]:
    """A replay times out the same calls again, and returns the recorded outcomes of the others."""
    results = []
    for i in range(n):
        value = None
        with contextlib.suppress(TimeoutError):
            async with stepfast.timeout(0.004):
                value = await (double(i) if i % 3 else sleep(days=1))
        results.append([value if value is not None else await double(i), await triple(i)])
    return results


@workflow
async def calls_in_cleanup(n: int) -> list[list[list[int]]]:
    results = []
    for i in range(n):
        try:
            try:
                await raise_lookup_error(i)
            finally:
                first = await double(i)
        except LookupError as error:
            assert str(error) == f"no {i}"
            results.append([first, await triple(i)])
    return results


@workflow
async def catches_everything(n: int) -> list[list[list[int]]]:
    results = []
    for i in range(n):
        try:
            await raise_lookup_error(i)
        except:  # noqa: E722 # also the exception that unwinds the code
            results.append(await double_and_triple(i))
    return results


@contextlib.asynccontextmanager
async def call_before_and_after(n: int, results: list[list[int]]) -> AsyncIterator[None]:
    results.append(await double(n))
    try:
        yield
    finally:
        results.append(await triple(n))


@workflow
async def calls_in_context_managers(n: int) -> list[list[list[int]]]:
    async def call_in_context(i: int) -> list[list[int]]:
        results: list[list[int]] = []
        with contextlib.suppress(LookupError):
            async with call_before_and_after(i, results):
                await raise_lookup_error(i)
        return results

    return await asyncio.gather(*[call_in_context(i) for i in range(n)])


@workflow
async def awaits_generated_calls(n: int) -> list[list[list[int]]]:
    def generate_calls() -> Iterator[object]:
        for i in range(n):
            yield double_and_triple(i)

    return [await call for call in generate_calls()]


@workflow
async def iterates_async_generator(n: int) -> list[list[list[int]]]:
    async def generate_pairs() -> AsyncIterator[list[list[int]]]:
        for i in range(n):
            yield await double_and_triple(i)

    return [pair async for pair in generate_pairs()]


@workflow
async def maps_branches(n: int) -> list[list[list[int]]]:
    return await stepfast.map(double_and_triple, range(n), concurrency=2)


@workflow
async def waits_for_all_tasks(n: int) -> list[list[list[int]]]:
    tasks = [asyncio.create_task(double_and_triple(i)) for i in range(n)]
    pending = set(tasks)
    while pending:
        _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    return [task.result() for task in tasks]


@workflow
async def gathers_children(n: int) -> list[list[list[int]]]:
    return list(await stepfast.gather(*[doubles_and_triples(i) for i in range(n)]))


@workflow
async def doubles_and_triples(n: int) -> list[list[int]]:
    return await double_and_triple(n)


@workflow
def maps_in_threads(n: int) -> list[list[list[int]]]:
    return stepfast.map(lambda i: [double_in_thread(i), triple_in_thread(i)], range(n), concurrency=3)


SINGLE_SHAPES = [calls_in_sequence, gathers_calls, awaits_calls_in_reverse]
PAIR_SHAPES = [
    gathers_branches,
    groups_tasks,
    awaits_tasks_in_reverse,
    runs_worker_pool,
    feeds_worker_pool,
    limits_by_semaphore,
    takes_as_completed,
    waits_for_first_completed,
    waits_for_event,
    sleeps_in_branches,
    limits_calls_in_time,
    calls_in_cleanup,
    catches_everything,
    calls_in_context_managers,
    awaits_generated_calls,
    iterates_async_generator,
    maps_branches,
    waits_for_all_tasks,
    gathers_children,
    maps_in_threads,
]
#: The number of items, which is the argument of each workflow.
ITEM_COUNT = 6


def expected_output(name: str) -> object:
    """Returns the output of the workflow with this name."""
    pair = lambda i: [[i, 2 * i], [i, 3 * i]]  # noqa: E731
    if name == nests_gathers.name:
        return [[pair(10 * k + i) for i in range(ITEM_COUNT)] for k in range(3)]
    if name in {workflow.name for workflow in SINGLE_SHAPES}:
        return [[i, 2 * i] for i in range(ITEM_COUNT)]
    return [pair(i) for i in range(ITEM_COUNT)]


async def run_and_cancel(engine: AsyncEngine, workflow_id: str, program: object) -> object:
    """Runs a workflow inline, cancels the caller after a short time, and returns the output."""
    caller = asyncio.create_task(engine.run(program.options(workflow_id=workflow_id), ITEM_COUNT))  # type: ignore[call-overload]
    await asyncio.sleep(_random.random() * 0.02)
    caller.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        return await caller
    # the execution continues by itself, or begins here if the caller had not begun it
    handle = await engine.start(program.options(workflow_id=workflow_id), ITEM_COUNT)  # type: ignore[call-overload]
    return await handle


async def main(url: str, times: int) -> None:
    """Runs all workflows, with workflow_ids, until their executions have ended."""
    async with AsyncEngine(url, suspend_after=0.002) as engine:
        handles = {}
        for program in [*SINGLE_SHAPES, *PAIR_SHAPES, nests_gathers]:
            for i in range(times):
                workflow_id = f"{program.name}-{i}"
                handles[workflow_id] = await engine.start(
                    program.options(workflow_id=workflow_id), ITEM_COUNT
                )
        runs = {
            f"{program.name}-run": asyncio.create_task(run_and_cancel(engine, f"{program.name}-run", program))
            for program in [*SINGLE_SHAPES, *PAIR_SHAPES, nests_gathers]
        }
        for workflow_id, handle in handles.items():
            check_output(workflow_id, await handle.result())
        for workflow_id, run in runs.items():
            check_output(workflow_id, await run)


def check_output(workflow_id: str, output: object) -> None:
    expected = expected_output(workflow_id.rsplit("-", 1)[0])
    assert output == expected, f"{workflow_id}: {output}, not {expected}"


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
