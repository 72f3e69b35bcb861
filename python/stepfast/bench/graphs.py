"""`bench simple`, `bench parallel` and `bench pipeline`: graphs of one, five and three tasks.

Concurrent callers, which are tasks of one event loop, run the graphs. They compare each output with the
expected one.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from stepfast import AsyncEngine, Graph
from stepfast.bench.messages import receive, send
from stepfast.bench.tally import Tally, bytes_written
from stepfast.bench.workflows import add_flush_counts, report_progress, send_row

simple: Final = Graph("simple")
parallel: Final = Graph("parallel")
pipeline: Final = Graph("pipeline")


@simple.task
async def greet(name: str) -> str:
    return f"Hello, {name}!"


@parallel.task
async def setup(name: str) -> list[list[int]]:
    return [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


@parallel.task
async def double_first(setup: list[list[int]]) -> list[int]:
    return [2 * number for number in setup[0]]


@parallel.task
async def triple_second(setup: list[list[int]]) -> list[int]:
    return [3 * number for number in setup[1]]


@parallel.task
async def quadruple_third(setup: list[list[int]]) -> list[int]:
    return [4 * number for number in setup[2]]


@parallel.task
async def merge(double_first: list[int], triple_second: list[int], quadruple_third: list[int]) -> int:
    return sum(double_first) + sum(triple_second) + sum(quadruple_third)


@pipeline.task
async def extract(name: str) -> list[int]:
    return [1, 2, 3, 4, 5]


@pipeline.task
async def double(extract: list[int]) -> list[int]:
    return [2 * number for number in extract]


@pipeline.task
async def load(double: list[int]) -> int:
    return sum(double)


#: The graphs by name, each with its expected output.
GRAPHS: Final[dict[str, tuple[Graph, Any]]] = {
    "simple": (simple, "Hello, world!"),
    "parallel": (parallel, 153),
    "pipeline": (pipeline, 30),
}


def main(url: str, shape: str, concurrency: int, total: int) -> None:
    """Runs `total` executions of a graph, `concurrency` at a time, and sends the row of the table."""
    asyncio.run(measure(url, shape, concurrency, total))


async def measure(url: str, shape: str, concurrency: int, total: int) -> None:
    """Runs the graphs after a warm-up, and sends the row of the run."""
    row: dict[str, Any] = {}
    async with AsyncEngine(url, max_running=max(concurrency, 10_000) + 1) as engine:
        await drive(engine, shape, min(concurrency, 64), Tally(min(max(total // 20, 1), 2_000)))
        send(ready=True)
        receive()
        bytes_before, tally = bytes_written(), Tally(total)
        progress_task = asyncio.create_task(report_progress(tally))
        with add_flush_counts(row, engine):
            begun = time.perf_counter()
            await drive(engine, shape, concurrency, tally)
            row |= tally.row(time.perf_counter() - begun)
        progress_task.cancel()
        send_row(row, bytes_before)


async def drive(engine: AsyncEngine, shape: str, callers: int, tally: Tally) -> None:
    """Runs `callers` tasks, which run one graph per number of the tally, until all of them have ended."""
    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(call(engine, shape, tally))


async def call(engine: AsyncEngine, shape: str, tally: Tally) -> None:
    """Runs one caller: runs graphs one after the other, until all numbers of the tally are taken."""
    graph, expected = GRAPHS[shape]
    clock, durations = time.perf_counter, tally.took
    for _ in tally.numbers:
        begun = clock()
        try:
            output = await engine.run(graph, name="world")
        except Exception as error:
            tally.record_failure(f"{type(error).__name__}: {error}")
            continue
        ended = clock()
        if output == expected:
            durations.append(ended - begun)
        else:
            tally.record_failure(f"the output is {output!r:.100}, not {expected!r:.100}")
