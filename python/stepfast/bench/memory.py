"""`bench memory`: the memory of an execution that waits in a step, and of a burst of starts.

The experiment also measures for how long a burst blocks the event loop.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeAlias

from stepfast import AsyncEngine, AsyncHandle, step, workflow
from stepfast.bench.messages import receive, send
from stepfast.bench.tally import Tally, bytes_written, memory_bytes
from stepfast.bench.workflows import add_flush_counts, counting

#: The figures of a measurement by their names, and its row of the table.
Measurement: TypeAlias = tuple[dict[str, float], dict[str, Any]]

#: The number of executions that are started at a time, unless the burst itself is measured.
STARTS_PER_SLICE = 100


class Gate:
    """A gate at which the bodies of steps wait until it opens."""

    def __init__(self) -> None:
        self._waiting_count = 0
        self._awaited_count = 0
        self._is_full = asyncio.Event()
        self._is_open = asyncio.Event()

    async def wait(self) -> None:
        """Waits until the gate opens."""
        self._waiting_count += 1
        if self._waiting_count == self._awaited_count:
            self._is_full.set()
        await self._is_open.wait()

    async def wait_for_bodies(self, count: int) -> None:
        """Waits until `count` bodies wait at the gate."""
        if self._waiting_count < count:
            self._awaited_count = count
            self._is_full.clear()
            await self._is_full.wait()

    def open(self) -> None:
        """Opens the gate for all bodies."""
        self._is_open.set()


#: The gate of the measurement; empty before the measurement creates it.
_gates: list[Gate] = []


@step(name="at_the_gate")
async def wait_at_gate(n: int) -> int:
    await _gates[0].wait()
    return n


@workflow(name="waiting")
async def wait_in_step(n: int) -> int:
    return await wait_at_gate(n)


def main(kind: str, **parameters: Any) -> None:
    """Runs the measurement of one kind, and sends its figures and its row."""
    kinds: dict[str, Callable[..., Coroutine[Any, Any, Measurement]]]
    kinds = {
        "blocked": measure_blocked,
        "burst": measure_burst,
        "fed": measure_fed,
        "tuned": measure_tuned,
    }
    figures, row = asyncio.run(kinds[kind](**parameters))
    send(measured=[figures, row | {"mode": kind}])


async def measure_blocked(url: str, few: int, many: int) -> Measurement:
    """Starts executions that wait in a step. Returns the growth of memory per execution.

    Args:
        url: The URL of the store.
        few: The number of waiting executions before the growth is measured.
        many: The number of waiting executions after the growth was measured.
    """
    gate = Gate()
    _gates[:] = [gate]
    row: dict[str, Any] = {}
    async with AsyncEngine(url, max_running=many + 1) as engine:
        send(ready=True)
        receive()
        bytes_before, tally = bytes_written(), Tally(many)
        handles: list[AsyncHandle[int]] = []

        async def start(n: int) -> None:
            begun = time.perf_counter()
            handles.append(await engine.start(wait_in_step, n))
            tally.took.append(time.perf_counter() - begun)

        async def start_up_to(count: int) -> None:
            while len(handles) < count:
                numbers = range(len(handles), min(len(handles) + STARTS_PER_SLICE, count))
                await asyncio.gather(*[start(n) for n in numbers])
                send(done=len(handles))
            await gate.wait_for_bodies(count)

        with add_flush_counts(row, engine):
            begun = time.perf_counter()
            await start_up_to(few)
            # present garbage is freed first, because it would hide growth if it were freed later; garbage of
            # the measured executions counts
            gc.collect()
            memory_before = memory_bytes("VmRSS")
            await start_up_to(many)
            bytes_each = (memory_bytes("VmRSS") - memory_before) / (many - few)
            row |= tally.row(time.perf_counter() - begun)
        gate.open()
        # the handles are in the order of their acknowledgements
        outputs = sorted([await handle.result() for handle in handles])
        if outputs != list(range(many)):
            raise AssertionError("the executions returned other numbers than those they had received")
        row |= {"bytes_written": bytes_written() - bytes_before, "concurrency": many}
    return {"each_bytes": bytes_each}, row


class Heartbeat:
    """A task that sleeps for a millisecond at a time. Its longest sleep shows how long other code has blocked
    the event loop."""

    def __init__(self) -> None:
        self._longest_seconds = 0.0
        self._task = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            self._longest_seconds = max(self._longest_seconds, time.perf_counter() - before)

    async def settle(self) -> None:
        """Lets the task run for a moment, and then resets the longest sleep."""
        await asyncio.sleep(0.05)
        self._longest_seconds = 0.0

    async def end(self) -> float:
        """Ends the task. Returns the longest sleep, in milliseconds."""
        # waits until the current sleep has ended, which counts too
        await asyncio.sleep(0.01)
        self._task.cancel()
        return 1000 * self._longest_seconds


class Collections:
    """A context manager that times the passes of Python's garbage collector. It changes no settings of the
    collector."""

    def __init__(self) -> None:
        #: The time of the longest pass, in milliseconds.
        self.longest: float = 0.0
        self._begun = 0.0

    def _record(self, phase: str, _: dict[str, int]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self._begun = now
        else:
            self.longest = max(self.longest, 1000 * (now - self._begun))

    def __enter__(self) -> Self:
        gc.callbacks.append(self._record)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._record)


class InFlightCounter:
    """A counter of workflows between their start and their result. Each caller uses the counter as a context
    manager."""

    def __init__(self) -> None:
        #: The largest count so far.
        self.peak: int = 0
        self._count = 0

    def __enter__(self) -> None:
        self._count += 1
        self.peak = max(self.peak, self._count)

    def __exit__(self, *_: object) -> None:
        self._count -= 1


async def measure_burst(url: str, many: int) -> Measurement:
    """Starts `many` workflows by `asyncio.gather`.

    All tasks are created, and begin, in a single iteration of the loop, which nothing can interrupt. A second
    measurement without an engine shows asyncio's part of that time.
    """

    async def gather(callers: list[Coroutine[Any, Any, None]]) -> None:
        await asyncio.gather(*callers)

    figures, row = await measure_starts(url, many, gather)

    async def sleep_twice() -> None:
        for _ in range(2):
            await asyncio.sleep(0)

    heartbeat = Heartbeat()
    await heartbeat.settle()
    await asyncio.gather(*[sleep_twice() for _ in range(many)])
    return figures | {"without_engine_ms": await heartbeat.end()}, row


async def measure_fed(url: str, many: int) -> Measurement:
    """Starts `many` workflows, one slice in each iteration of the loop, so that only the engine blocks the
    loop."""

    async def feed(callers: list[Coroutine[Any, Any, None]]) -> None:
        async with asyncio.TaskGroup() as group:
            for first in range(0, len(callers), STARTS_PER_SLICE):
                for caller in callers[first : first + STARTS_PER_SLICE]:
                    group.create_task(caller)
                await asyncio.sleep(0)

    return await measure_starts(url, many, feed)


async def measure_tuned(url: str, many: int) -> Measurement:
    """Measures the same as `measure_fed`, with a garbage collector that rarely scans old objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 1_000, 1_000)
    return await measure_fed(url, many)


async def measure_starts(
    url: str, many: int, run_callers: Callable[[list[Coroutine[Any, Any, None]]], Coroutine[Any, Any, None]]
) -> Measurement:
    """Starts no-op workflows, each from a caller that waits for the result. Returns the figures and the row.

    Args:
        url: The URL of the store.
        many: The number of workflows.
        run_callers: A function that starts the callers as tasks, and waits for their ends.
    """
    row: dict[str, Any] = {}
    async with AsyncEngine(url) as engine:
        send(ready=True)
        receive()
        bytes_before, tally, in_flight = bytes_written(), Tally(many), InFlightCounter()

        async def call(n: int) -> None:
            begun = time.perf_counter()
            with in_flight:
                output = await (await engine.start(counting, n, 0)).result()
            if output != n:
                raise AssertionError(f"workflow {n} returned {output!r}")
            tally.took.append(time.perf_counter() - begun)

        callers: list[Coroutine[Any, Any, None]] = [call(n) for n in range(many)]
        heartbeat = Heartbeat()
        await heartbeat.settle()
        with add_flush_counts(row, engine), Collections() as collections:
            begun = time.perf_counter()
            await run_callers(callers)
            row |= tally.row(time.perf_counter() - begun)
        longest_gap_ms = await heartbeat.end()
        row |= {"bytes_written": bytes_written() - bytes_before, "concurrency": many}
    figures = {
        "peak_bytes": memory_bytes("VmHWM"),
        "longest_gap_ms": longest_gap_ms,
        "longest_collection_ms": collections.longest,
        "most_in_flight": in_flight.peak,
    }
    return figures, row
