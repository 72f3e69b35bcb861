"""`bench queue`: tasks of one event loop put no-op workflows into queues, and the same process runs them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from stepfast import AsyncEngine, ConfiguredWorkflow, Queue, workflow
from stepfast.bench.tally import Tally, bytes_written
from stepfast.bench.wire import hear, say
from stepfast.bench.workflows import counted, tell

#: Workflows that one caller runs one after the other, with nothing else to do.
ALONE = 200


class _Ran:
    """How many have begun, and who waits for how many."""

    def __init__(self) -> None:
        self.count = 0
        self._wanted = 0
        self._is_so = asyncio.Event()

    def one(self) -> None:
        """One more has begun."""
        self.count += 1
        if self.count == self._wanted:
            self._is_so.set()

    async def until(self, count: int) -> None:
        """Waits until so many have."""
        if self.count < count:
            self._wanted = count
            self._is_so.clear()
            await self._is_so.wait()


#: Of the run of this process.
_ran = _Ran()


@workflow
async def queued(n: int) -> int:
    _ran.one()
    return time.time_ns() // 1000


#: The workflow with the queue in which it waits.
Queued: TypeAlias = ConfiguredWorkflow[[int], Coroutine[Any, Any, int]]


@dataclass(frozen=True)
class Parameters:
    """One combination.

    Args:
        url: The store.
        queues: How many.
        concurrency: Callers.
        total: Workflows in all, for each row.
        limit: Most that run at a time in each queue; None for no limit.
    """

    url: str
    queues: int
    concurrency: int
    total: int
    limit: int | None


def main(**parameters: Any) -> None:
    """Runs one combination, and tells its rows."""
    asyncio.run(measure(Parameters(**parameters)))


async def measure(asked: Parameters) -> None:
    """First all are put into queues, then run, then both happens at once, then one after the other."""
    queues = [Queue(f"bench {n}", concurrency=asked.limit) for n in range(asked.queues)]
    async with AsyncEngine(asked.url, queues=queues) as engine:
        configured = [queued.options(queue=queue) for queue in queues]
        few = min(max(asked.total // 20, 1), 2_000)
        await put(engine, configured, 64, Tally(few))
        await over(engine)
        for queue in queues:
            await engine.pause_queue(queue)
        say(ready=True)
        for mode in ("enqueue", "drain", "both"):
            hear()
            row: dict[str, Any] = {}
            written, tally, before = bytes_written(), Tally(asked.total), _ran.count
            telling = asyncio.create_task(tell(tally))
            with counted(row, engine):
                begun = time.perf_counter()
                if mode == "drain":
                    for queue in queues:
                        await engine.resume_queue(queue)
                else:
                    await put(engine, configured, asked.concurrency, tally)
                if mode != "enqueue":
                    await _ran.until(before + asked.total)
                    await over(engine)
                row |= tally.row(time.perf_counter() - begun)
            telling.cancel()
            if mode != "enqueue":
                row |= {"completed": asked.total, "per_second": asked.total / max(row["seconds"], 1e-9)}
            say(row=row | {"bytes_written": bytes_written() - written})
        hear()
        waits: list[tuple[float, float]] = [await one(engine, configured[0]) for _ in range(ALONE)]
        say(waits=waits)


async def put(engine: AsyncEngine, configured: Sequence[Queued], callers: int, tally: Tally) -> None:
    """Puts workflows into queues, from concurrent tasks, until all numbers are taken."""

    async def caller() -> None:
        for n in tally.numbers:
            begun = time.perf_counter()
            try:
                await engine.start(configured[n % len(configured)], n)
            except Exception as error:
                tally.failed(f"{type(error).__name__}: {error}")
                continue
            tally.took.append(time.perf_counter() - begun)

    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(caller())


async def over(engine: AsyncEngine) -> None:
    """Waits until nothing is left to do: the ends are durable."""
    while await engine.count(status=("queued", "running")):
        await asyncio.sleep(0.001)


async def one(engine: AsyncEngine, configured: Queued) -> tuple[float, float]:
    """Returns how long an execution waited for its beginning, and its caller for the result, in
    milliseconds."""
    begun, at = time.perf_counter(), time.time_ns() // 1000
    began = await engine.run(configured, 0)
    return max(began - at, 0) / 1000, 1000 * (time.perf_counter() - begun)
