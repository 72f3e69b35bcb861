"""`bench batching`: items in calls of one to many, single calls, a large batch, and searches for many ids."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable
from typing import Any

from stepfast import AsyncClient, AsyncEngine, Client, ExecutionOutcome, Status, step, workflow
from stepfast.bench.messages import receive, send
from stepfast.bench.tally import Tally

#: One of this many ids that are searched for does not exist.
ABSENT_EVERY = 10


@workflow(name="batching")
async def batching(number: int) -> int:
    return number


@step
async def passes(number: int) -> int:
    return number


@workflow(name="batching with steps")
async def batching_with_steps(number: int) -> int:
    for _ in range(3):
        await passes(number)
    return number


def main(operation: str, url: str, **parameters: Any) -> None:
    """Measures one operation, and sends the row of the table."""
    OPERATIONS[operation](url, **parameters)


def wait_for_begin() -> None:
    send(ready=True)
    receive()


def row_of_items(tally: Tally, size: int, seconds: float, *, failed: int = 0) -> dict[str, Any]:
    """Returns the row of calls with `size` items each."""
    completed = len(tally.took) * size - failed
    row = tally.row(seconds)
    return row | {"completed": completed, "failed": failed, "per_second": completed / max(seconds, 1e-9)}


def write(url: str, size: int, seconds: float) -> None:
    """Writes batches of `size` items from a list, one call after the other."""
    inputs, tally = [(number,) for number in range(size)], Tally(0)
    with Client(url) as client:
        wait_for_begin()
        begun = time.perf_counter()
        while (call := time.perf_counter()) < begun + seconds:
            client.submit_batch(batching, inputs)
            tally.took.append(time.perf_counter() - call)
        elapsed = time.perf_counter() - begun
    send(row=row_of_items(tally, size, elapsed))


def single_calls(url: str, callers: int, seconds: float) -> None:
    """Starts executions by single calls of `callers` tasks."""
    asyncio.run(call_singly(url, callers, seconds))


async def call_singly(url: str, callers: int, seconds: float) -> None:
    async with AsyncClient(url) as client:
        wait_for_begin()
        begun = time.perf_counter()
        tally = Tally(0)

        async def call(number: int) -> None:
            while (call := time.perf_counter()) < begun + seconds:
                await client.start(batching, number)
                tally.took.append(time.perf_counter() - call)

        await asyncio.gather(*map(call, range(callers)))
        row = tally.row(time.perf_counter() - begun)
    send(row=row)


def run(url: str, items: int, steps: int) -> None:
    """Submits a batch of `items`, and waits until all of them have ended."""
    asyncio.run(run_batch(url, items, has_steps=steps > 0))


async def run_batch(url: str, items: int, *, has_steps: bool) -> None:
    of_item = batching_with_steps if has_steps else batching
    async with AsyncEngine(url) as engine:
        wait_for_begin()
        begun = time.perf_counter()
        batch = await engine.submit_batch(of_item, ((number,) for number in range(items)))
        submitted = time.perf_counter() - begun
        counts = await batch.wait()
        elapsed = time.perf_counter() - begun
    send(
        row={
            "completed": counts.completed,
            "failed": items - counts.completed,
            "seconds": elapsed,
            "per_second": counts.completed / elapsed,
        }
    )
    send(submitted_ms=1000 * submitted)


def search(url: str, prefix: str, count: int, size: int, seconds: float, by_attribute: str | None) -> None:
    """Searches for random ids in calls of `size`. The time of the calls and of the outputs counts."""
    tally, failed, total = Tally(0), 0, 0.0
    with Client(url) as client:
        search_for = client.get_many if by_attribute is None else searches_by_attribute(client, by_attribute)
        wait_for_begin()
        while total < seconds:
            expected = [
                None if random.randrange(ABSENT_EVERY) == 0 else random.randrange(count) for _ in range(size)
            ]
            ids = [
                f"{prefix}{count + position if number is None else number}"
                for position, number in enumerate(expected)
            ]
            call = time.perf_counter()
            outputs = [
                found.output if found and found.execution.status == Status.COMPLETED else None
                for found in search_for(ids)
            ]
            tally.took.append(time.perf_counter() - call)
            total += tally.took[-1]
            failed += sum(output != number for output, number in zip(outputs, expected, strict=True))
    send(row=row_of_items(tally, size, total, failed=failed))


def searches_by_attribute(
    client: Client, attribute: str
) -> Callable[[Iterable[str]], list[ExecutionOutcome | None]]:
    """Returns a function that finds one execution for each value of an attribute."""

    def search_for(values: Iterable[str]) -> list[ExecutionOutcome | None]:
        return [next(iter(found), None) for found in client.find(attribute, values, limit=1)]

    return search_for


#: The operations by name.
OPERATIONS: dict[str, Callable[..., None]] = {
    "write": write,
    "single calls": single_calls,
    "run": run,
    "search": search,
}
