"""`bench workflows` and `bench steps`: no-op workflows with any number of no-op steps.

Concurrent callers start the workflows. The callers are tasks of one event loop, or threads.

Each workflow has a number, and each of its steps adds one to it. The caller compares the output with the
expected number, and so proves that the output belongs to its own workflow.

Functions whose names end in `_here` are for callers that are threads. Workflows and steps with such names are
sync.

Recorded names (`name=…`) never change, because their lengths are a part of the measured bytes.
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
from stepfast.bench.messages import receive, send
from stepfast.bench.tally import Tally, bytes_written

#: The interval between two reports of progress.
PROGRESS_INTERVAL_SECONDS = 0.1


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


#: Random bytes, of which every value is a slice. They are random so that values cannot be compressed.
_random_bytes = b""


def value(n: int, size: int) -> bytes:
    """Returns a value of `size` bytes. Values of neighbouring `n` differ."""
    begin = n * 4_099 % (len(_random_bytes) - size + 1)
    return _random_bytes[begin : begin + size]


@step(name="make")
async def make_value(n: int, size: int) -> bytes:
    return value(n, size)


@workflow(name="making")
async def make_values(n: int, steps: int, size: int) -> int:
    for _ in range(steps):
        if len(await make_value(n, size)) != size:
            return -1
        n += 1
    return n


@workflow(name="returning")
async def return_input(given: bytes) -> bytes:
    return given


@step(name="make_here")
def make_value_here(n: int, size: int) -> bytes:
    return value(n, size)


@workflow(name="making_here")
def make_values_here(n: int, steps: int, size: int) -> int:
    for _ in range(steps):
        if len(make_value_here(n, size)) != size:
            return -1
        n += 1
    return n


@workflow(name="returning_here")
def return_input_here(given: bytes) -> bytes:
    return given


@dataclass(frozen=True)
class Parameters:
    """The parameters of a run.

    Args:
        url: The URL of the store.
        mode: The calls that a caller makes for each workflow. `start` means `engine.start`, then a wait for
            the result of the handle. `run` means `engine.run`, which does both in one call.
        concurrency: The number of callers.
        is_threads: Whether the callers are threads that run sync workflows, not tasks.
        steps: The number of steps in a workflow.
        total: The number of workflows in all, without those of the warm-up.
        size: The size in bytes of the values of steps, or, without steps, of input and output; None for
            numbers.
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
        """The number of slots of the engine. It is larger than the number of callers, so that no execution
        waits for a slot."""
        return max(self.concurrency, 10_000) + 1

    @property
    def warm_up(self) -> tuple[int, int]:
        """The numbers of callers and of workflows in the warm-up, which is not measured."""
        return min(self.concurrency, 64), min(max(self.total // 20, 1), 2_000)

    def plan_call(self, n: int) -> tuple[Any, tuple[Any, ...], Any]:
        """Returns the workflow with the number `n`, its arguments, and its expected output."""
        if self.size is None:
            return counting_here if self.is_threads else counting, (n, self.steps), n + self.steps
        if self.steps == 0:
            payload = value(n, self.size)
            return return_input_here if self.is_threads else return_input, (payload,), payload
        called = make_values_here if self.is_threads else make_values
        return called, (n, self.steps, self.size), n + self.steps


def main(**parameters: Any) -> None:
    """Runs one combination of parameters, and sends its row of the table."""
    global _random_bytes
    combination = Parameters(**parameters)
    if combination.size is not None:
        _random_bytes = random.Random(1).randbytes(max(8 << 20, combination.size))
    if combination.is_threads:
        measure_threads(combination)
    else:
        asyncio.run(measure_tasks(combination))


@contextmanager
def add_flush_counts(row: dict[str, Any], engine: Engine | AsyncEngine) -> Generator[None]:
    """Counts the flushes of the store and the Writes in them during a block, and adds both to the row."""
    # only benchmarks use these figures, so they are not public
    opened = engine._open_engine  # pyright: ignore[reportPrivateUsage]
    assert opened is not None
    native = opened.native
    flushes, writes = native.flush_counts()
    yield
    flushes, writes = (
        after - before for after, before in zip(native.flush_counts(), (flushes, writes), strict=True)
    )
    row |= {"flushes": flushes, "writes_per_flush": writes / max(flushes, 1)}


def send_row(row: dict[str, Any], bytes_before: int) -> None:
    """Sends a row, and waits until the program has measured this process.

    The engine is open meanwhile, because the end of an engine on SQLite copies the log into the database.
    """
    send(row=row | {"bytes_written": bytes_written() - bytes_before})
    receive()


async def measure_tasks(parameters: Parameters) -> None:
    """Runs the workflows from tasks, and sends the row of the run."""
    row: dict[str, Any] = {}
    async with AsyncEngine(parameters.url, max_running=parameters.max_running) as engine:
        callers, total = parameters.warm_up
        await drive(engine, parameters, callers, Tally(total))
        send(ready=True)
        receive()
        bytes_before, tally = bytes_written(), Tally(parameters.total)
        progress_task = asyncio.create_task(report_progress(tally))
        with add_flush_counts(row, engine):
            begun = time.perf_counter()
            await drive(engine, parameters, parameters.concurrency, tally)
            row |= tally.row(time.perf_counter() - begun)
        progress_task.cancel()
        send_row(row, bytes_before)


async def drive(engine: AsyncEngine, parameters: Parameters, callers: int, tally: Tally) -> None:
    """Runs `callers` tasks, which run one workflow per number of the tally, until all of them have ended."""
    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(call(engine, parameters, tally))


async def call(engine: AsyncEngine, parameters: Parameters, tally: Tally) -> None:
    """Runs one caller: calls workflows one after the other, until all numbers of the tally are taken."""
    clock, durations, is_run = time.perf_counter, tally.took, parameters.mode == "run"
    for n in tally.numbers:
        begun = clock()
        called, arguments, expected = parameters.plan_call(n)
        try:
            if is_run:
                output = await engine.run(called, *arguments)
            else:
                output = await (await engine.start(called, *arguments)).result()
        except Exception as error:
            tally.record_failure(f"{type(error).__name__}: {error}")
            continue
        ended = clock()
        if output == expected:
            durations.append(ended - begun)
        else:
            tally.record_failure(f"the output is {output!r:.100}, not {expected!r:.100}")


async def report_progress(tally: Tally) -> None:
    """Sends the number of ended workflows at regular intervals, until the task is cancelled."""
    while True:
        await asyncio.sleep(PROGRESS_INTERVAL_SECONDS)
        send(done=tally.ended_count)


def measure_threads(parameters: Parameters) -> None:
    """Runs the workflows from threads, and sends the row of the run."""
    row: dict[str, Any] = {}
    with Engine(parameters.url, max_running=parameters.max_running) as engine:
        callers, total = parameters.warm_up
        drive_here(engine, parameters, callers, Tally(total))
        send(ready=True)
        receive()
        bytes_before, tally = bytes_written(), Tally(parameters.total)
        with add_flush_counts(row, engine):
            begun = time.perf_counter()
            drive_here(engine, parameters, parameters.concurrency, tally)
            row |= tally.row(time.perf_counter() - begun)
        send_row(row, bytes_before)


def drive_here(engine: Engine, parameters: Parameters, callers: int, tally: Tally) -> None:
    """Runs `callers` threads, until all workflows of the tally have ended. Sends the progress meanwhile."""
    arguments = (engine, parameters, tally)
    threads = [threading.Thread(target=call_here, args=arguments, daemon=True) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(PROGRESS_INTERVAL_SECONDS)
            send(done=tally.ended_count)


def call_here(engine: Engine, parameters: Parameters, tally: Tally) -> None:
    """Runs one caller in this thread, as `call` does in a task."""
    clock, durations, is_run = time.perf_counter, tally.took, parameters.mode == "run"
    for n in tally.numbers:
        begun = clock()
        called, arguments, expected = parameters.plan_call(n)
        try:
            handle = None if is_run else engine.start(called, *arguments)
            output = engine.run(called, *arguments) if handle is None else handle.result()
        except Exception as error:
            tally.record_failure(f"{type(error).__name__}: {error}")
            continue
        ended = clock()
        if output == expected:
            durations.append(ended - begun)
        else:
            tally.record_failure(f"the output is {output!r:.100}, not {expected!r:.100}")
