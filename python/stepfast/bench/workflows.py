"""`bench workflows` and `bench steps`: workflows of any number of steps that do next to nothing, by
concurrent callers, which are tasks of one event loop, or threads.

Each gets a number, its steps count on from it, and what it returns is compared: that is how one knows that
every caller got the output of its own workflow.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from stepfast import AsyncEngine, Engine, step, workflow
from stepfast.bench.tally import Tally, bytes_written
from stepfast.bench.wire import hear, say

#: So often the program hears how far it is, in seconds.
TOLD_EVERY = 0.1


@step
async def next_number(n: int) -> int:
    return n + 1


@workflow
async def counting(n: int, steps: int) -> int:
    for _ in range(steps):
        n = await next_number(n)
    return n


@step
def next_number_here(n: int) -> int:
    return n + 1


@workflow
def counting_here(n: int, steps: int) -> int:
    for _ in range(steps):
        n = next_number_here(n)
    return n


@dataclass(frozen=True)
class Parameters:
    """One combination.

    Args:
        url: The store.
        mode: `start` (the handle is acknowledged, then the result) or `run` (both in one call).
        concurrency: Callers.
        is_threads: Whether the callers are threads that run sync workflows, rather than tasks.
        steps: Steps of a workflow.
        total: Workflows in all, besides those that warm up.
    """

    url: str
    mode: str
    concurrency: int
    is_threads: bool
    steps: int
    total: int

    @property
    def max_running(self) -> int:
        """As many places as callers: what is measured is running, not waiting for a place."""
        return max(self.concurrency, 10_000) + 1

    @property
    def warm_up(self) -> tuple[int, int]:
        """Callers, and workflows in all, before anything counts."""
        return min(self.concurrency, 64), min(max(self.total // 20, 1), 2_000)


def main(**parameters: Any) -> None:
    """Runs one combination, and tells its row."""
    asked = Parameters(**parameters)
    row = by_threads(asked) if asked.is_threads else asyncio.run(by_tasks(asked))
    say(row=row)


@contextmanager
def counted(row: dict[str, Any], engine: Engine | AsyncEngine) -> Generator[None]:
    """Adds what the store has done meanwhile to the row."""
    # these figures are for no program but this one
    opened = engine._opened  # pyright: ignore[reportPrivateUsage]
    assert opened is not None
    native = opened.native
    flushes, writes = native.counted()
    yield
    flushes, writes = (
        after - before for after, before in zip(native.counted(), (flushes, writes), strict=True)
    )
    row |= {"flushes": flushes, "writes_per_flush": writes / max(flushes, 1)}


async def by_tasks(asked: Parameters) -> dict[str, Any]:
    """The row of a run by tasks."""
    row: dict[str, Any] = {}
    async with AsyncEngine(asked.url, max_running=asked.max_running) as engine:
        callers, total = asked.warm_up
        await drive(engine, asked, callers, Tally(total))
        say(ready=True)
        hear()
        written, tally = bytes_written(), Tally(asked.total)
        telling = asyncio.create_task(tell(tally))
        with counted(row, engine):
            begun = time.perf_counter()
            await drive(engine, asked, asked.concurrency, tally)
            row |= tally.row(time.perf_counter() - begun)
        telling.cancel()
    return row | {"bytes_written": bytes_written() - written}


async def drive(engine: AsyncEngine, asked: Parameters, callers: int, tally: Tally) -> None:
    """Lets so many tasks call until all numbers are taken and done."""
    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(call(engine, asked.mode == "run", asked.steps, tally))


async def call(engine: AsyncEngine, is_run: bool, steps: int, tally: Tally) -> None:
    """One caller."""
    clock, took = time.perf_counter, tally.took
    for n in tally.numbers:
        begun = clock()
        try:
            if is_run:
                output = await engine.run(counting, n, steps)
            else:
                output = await (await engine.start(counting, n, steps)).result()
        except Exception as error:
            tally.failed(f"{type(error).__name__}: {error}")
            continue
        ended = clock()
        if output == n + steps:
            took.append(ended - begun)
        else:
            tally.failed(f"its output is {output!r}, not {n + steps}")


async def tell(tally: Tally) -> None:
    """Tells how far it is, until it is cancelled."""
    while True:
        await asyncio.sleep(TOLD_EVERY)
        say(done=tally.done)


def by_threads(asked: Parameters) -> dict[str, Any]:
    """The row of a run by threads."""
    row: dict[str, Any] = {}
    with Engine(asked.url, max_running=asked.max_running) as engine:
        callers, total = asked.warm_up
        drive_here(engine, asked, callers, Tally(total))
        say(ready=True)
        hear()
        written, tally = bytes_written(), Tally(asked.total)
        with counted(row, engine):
            begun = time.perf_counter()
            drive_here(engine, asked, asked.concurrency, tally)
            row |= tally.row(time.perf_counter() - begun)
    return row | {"bytes_written": bytes_written() - written}


def drive_here(engine: Engine, asked: Parameters, callers: int, tally: Tally) -> None:
    """Lets so many threads call until all numbers are taken and done; tells how far it is meanwhile."""
    arguments = (engine, asked.mode == "run", asked.steps, tally)
    threads = [threading.Thread(target=call_here, args=arguments, daemon=True) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(TOLD_EVERY)
            say(done=tally.done)


def call_here(engine: Engine, is_run: bool, steps: int, tally: Tally) -> None:
    """One caller, which is a thread."""
    clock, took = time.perf_counter, tally.took
    for n in tally.numbers:
        begun = clock()
        try:
            if is_run:
                output = engine.run(counting_here, n, steps)
            else:
                output = engine.start(counting_here, n, steps).result()
        except Exception as error:
            tally.failed(f"{type(error).__name__}: {error}")
            continue
        ended = clock()
        if output == n + steps:
            took.append(ended - begun)
        else:
            tally.failed(f"its output is {output!r}, not {n + steps}")
