"""`bench queue`: tasks of one event loop enqueue no-op workflows, and the same process runs them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from stepfast import AsyncEngine, ConfiguredWorkflow, Queue, workflow
from stepfast.bench.messages import receive, send
from stepfast.bench.tally import Tally, bytes_written
from stepfast.bench.workflows import add_flush_counts, report_progress

#: The number of workflows that a single caller runs one after the other, without other load.
ONE_BY_ONE_WORKFLOWS = 200


class RunCounter:
    """A counter of workflows that have begun in this process. At most one task may wait for a count."""

    def __init__(self) -> None:
        self.count: int = 0
        self._awaited_count = 0
        self._is_reached = asyncio.Event()

    def increment(self) -> None:
        """Counts one more workflow."""
        self.count += 1
        if self.count == self._awaited_count:
            self._is_reached.set()

    async def wait_for(self, count: int) -> None:
        """Waits until `count` workflows have begun."""
        if self.count < count:
            self._awaited_count = count
            self._is_reached.clear()
            await self._is_reached.wait()


_run_counter = RunCounter()


@workflow(name="queued")
async def record_begin(n: int) -> int:
    """Counts the workflow, and returns the present time in microseconds."""
    _run_counter.increment()
    return time.time_ns() // 1000


#: The workflow, with the queue in which its executions wait.
QueuedWorkflow: TypeAlias = ConfiguredWorkflow[[int], Coroutine[Any, Any, int]]


@dataclass(frozen=True)
class Parameters:
    """The parameters of a run.

    Args:
        url: The URL of the store.
        queues: The number of queues.
        concurrency: The number of callers.
        total: The number of workflows in all, for each row.
        limit: The concurrency limit of each queue; None for no limit.
    """

    url: str
    queues: int
    concurrency: int
    total: int
    limit: int | None


def main(**parameters: Any) -> None:
    """Runs one combination of parameters, and sends its rows of the table."""
    asyncio.run(measure(Parameters(**parameters)))


async def measure(parameters: Parameters) -> None:
    """Measures four modes, one after the other. The first mode enqueues workflows into paused queues. The
    second resumes the queues, and so runs these workflows. The third enqueues and runs workflows at the same
    time. The last runs single workflows, one at a time."""
    queues = [Queue(f"bench {n}", concurrency=parameters.limit) for n in range(parameters.queues)]
    async with AsyncEngine(parameters.url, queues=queues) as engine:
        queued_workflows = [record_begin.options(queue=queue) for queue in queues]
        warm_up_total = min(max(parameters.total // 20, 1), 2_000)
        await enqueue(engine, queued_workflows, 64, Tally(warm_up_total))
        await wait_for_ends(engine)
        for queue in queues:
            await engine.pause_queue(queue)
        send(ready=True)
        for mode in ("enqueue", "drain", "both"):
            receive()
            row: dict[str, Any] = {}
            bytes_before, tally = bytes_written(), Tally(parameters.total)
            count_before = _run_counter.count
            progress_task = asyncio.create_task(report_progress(tally))
            with add_flush_counts(row, engine):
                begun = time.perf_counter()
                if mode == "drain":
                    for queue in queues:
                        await engine.resume_queue(queue)
                else:
                    await enqueue(engine, queued_workflows, parameters.concurrency, tally)
                if mode != "enqueue":
                    await _run_counter.wait_for(count_before + parameters.total)
                    await wait_for_ends(engine)
                row |= tally.row(time.perf_counter() - begun)
            progress_task.cancel()
            if mode != "enqueue":
                per_second = parameters.total / max(row["seconds"], 1e-9)
                row |= {"completed": parameters.total, "per_second": per_second}
            send(row=row | {"bytes_written": bytes_written() - bytes_before})
        receive()
        waits: list[tuple[float, float]] = [
            await run_one(engine, queued_workflows[0]) for _ in range(ONE_BY_ONE_WORKFLOWS)
        ]
        send(waits=waits)


async def enqueue(
    engine: AsyncEngine, queued_workflows: Sequence[QueuedWorkflow], callers: int, tally: Tally
) -> None:
    """Enqueues workflows from `callers` concurrent tasks, until all numbers of the tally are taken."""

    async def call() -> None:
        for n in tally.numbers:
            begun = time.perf_counter()
            try:
                await engine.start(queued_workflows[n % len(queued_workflows)], n)
            except Exception as error:
                tally.record_failure(f"{type(error).__name__}: {error}")
                continue
            tally.took.append(time.perf_counter() - begun)

    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(call())


async def wait_for_ends(engine: AsyncEngine) -> None:
    """Waits until no execution is queued or running. The ends of all executions are then durable."""
    while await engine.count(status=("queued", "running")):
        await asyncio.sleep(0.001)


async def run_one(engine: AsyncEngine, queued_workflow: QueuedWorkflow) -> tuple[float, float]:
    """Runs one workflow. Returns the time from the call to the beginning of the workflow, and the time from
    the call to its result, in milliseconds."""
    begun, called_at = time.perf_counter(), time.time_ns() // 1000
    began_at = await engine.run(queued_workflow, 0)
    return max(began_at - called_at, 0) / 1000, 1000 * (time.perf_counter() - begun)
