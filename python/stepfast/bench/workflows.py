"""`bench workflows` and `bench steps`: workflows of any number of steps that do next to nothing, by
concurrent callers, which are tasks of one event loop, or threads.

Each gets a number, its steps count on from it, and what it returns is compared: that is how one knows that
every caller got the output of its own workflow.
"""

from __future__ import annotations

import asyncio
import random
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


#: Random bytes of which every value is a part: nothing on the way can compress them.
_random = b""


def value(n: int, size: int) -> bytes:
    """A value of that many bytes; neighbours differ."""
    begin = n * 4_099 % (len(_random) - size + 1)
    return _random[begin : begin + size]


@step
async def make(n: int, size: int) -> bytes:
    return value(n, size)


@workflow
async def making(n: int, steps: int, size: int) -> int:
    for _ in range(steps):
        if len(await make(n, size)) != size:
            return -1
        n += 1
    return n


@workflow
async def returning(given: bytes) -> bytes:
    return given


@step
def make_here(n: int, size: int) -> bytes:
    return value(n, size)


@workflow
def making_here(n: int, steps: int, size: int) -> int:
    for _ in range(steps):
        if len(make_here(n, size)) != size:
            return -1
        n += 1
    return n


@workflow
def returning_here(given: bytes) -> bytes:
    return given


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
        size: Bytes of the values of steps, or, without steps, of input and output; None for numbers.
    """

    url: str
    mode: str
    concurrency: int
    is_threads: bool
    steps: int
    total: int
    size: int | None = None

    @property
    def max_running(self) -> int:
        """As many places as callers: what is measured is running, not waiting for a place."""
        return max(self.concurrency, 10_000) + 1

    @property
    def warm_up(self) -> tuple[int, int]:
        """Callers, and workflows in all, before anything counts."""
        return min(self.concurrency, 64), min(max(self.total // 20, 1), 2_000)

    def work(self, n: int) -> tuple[Any, tuple[Any, ...], Any]:
        """The workflow of a number, its arguments, and its output."""
        if self.size is None:
            return counting_here if self.is_threads else counting, (n, self.steps), n + self.steps
        if self.steps == 0:
            given = value(n, self.size)
            return returning_here if self.is_threads else returning, (given,), given
        return making_here if self.is_threads else making, (n, self.steps, self.size), n + self.steps


def main(**parameters: Any) -> None:
    """Runs one combination, and tells its row."""
    global _random
    asked = Parameters(**parameters)
    if asked.size is not None:
        _random = random.Random(1).randbytes(max(8 << 20, asked.size))
    row = by_threads(asked) if asked.is_threads else asyncio.run(by_tasks(asked))
    say(row=row)


@contextmanager
def counted(row: dict[str, Any], engine: Engine | AsyncEngine) -> Generator[None]:
    """Adds what the store has done meanwhile to the row."""
    # these figures are for no program but this one
    opened = engine._opened  # pyright: ignore[reportPrivateUsage]
    assert opened is not None
    native = opened.native
    flushes, writes = native.flush_counts()
    yield
    flushes, writes = (
        after - before for after, before in zip(native.flush_counts(), (flushes, writes), strict=True)
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
            group.create_task(call(engine, asked, tally))


async def call(engine: AsyncEngine, asked: Parameters, tally: Tally) -> None:
    """One caller."""
    clock, took, is_run = time.perf_counter, tally.took, asked.mode == "run"
    for n in tally.numbers:
        begun = clock()
        called, arguments, wanted = asked.work(n)
        try:
            if is_run:
                output = await engine.run(called, *arguments)
            else:
                output = await (await engine.start(called, *arguments)).result()
        except Exception as error:
            tally.failed(f"{type(error).__name__}: {error}")
            continue
        ended = clock()
        if output == wanted:
            took.append(ended - begun)
        else:
            tally.failed(f"its output is {output!r:.100}, not {wanted!r:.100}")


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
    arguments = (engine, asked, tally)
    threads = [threading.Thread(target=call_here, args=arguments, daemon=True) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(TOLD_EVERY)
            say(done=tally.done)


def call_here(engine: Engine, asked: Parameters, tally: Tally) -> None:
    """One caller, which is a thread."""
    clock, took, is_run = time.perf_counter, tally.took, asked.mode == "run"
    for n in tally.numbers:
        begun = clock()
        called, arguments, wanted = asked.work(n)
        try:
            handle = None if is_run else engine.start(called, *arguments)
            output = engine.run(called, *arguments) if handle is None else handle.result()
        except Exception as error:
            tally.failed(f"{type(error).__name__}: {error}")
            continue
        ended = clock()
        if output == wanted:
            took.append(ended - begun)
        else:
            tally.failed(f"its output is {output!r:.100}, not {wanted!r:.100}")
