"""`bench memory`: what an execution costs in memory while it waits in a step; and what very many that are
started at once cost in memory, and in time in which the event loop does nothing else."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine
from typing import Any, Self

from stepfast import AsyncEngine, AsyncHandle, step, workflow
from stepfast.bench.tally import Tally, bytes_written, memory
from stepfast.bench.wire import hear, say
from stepfast.bench.workflows import counted, counting

#: Figures by their names, and the row.
Outcome = tuple[dict[str, float], dict[str, Any]]

#: So many are started at a time where the burst itself is not what is measured.
SLICE = 100


class Gate:
    """Where the bodies of steps wait until they are let go."""

    def __init__(self) -> None:
        self._inside = 0
        self._wanted = 0
        self._is_full = asyncio.Event()
        self._is_open = asyncio.Event()

    async def wait(self) -> None:
        """Waits inside until the gate opens."""
        self._inside += 1
        if self._inside == self._wanted:
            self._is_full.set()
        await self._is_open.wait()

    async def filled(self, wanted: int) -> None:
        """Waits until so many are inside."""
        if self._inside < wanted:
            self._wanted = wanted
            self._is_full.clear()
            await self._is_full.wait()

    def open(self) -> None:
        """Lets all go."""
        self._is_open.set()


_gates: list[Gate] = []


@step
async def at_the_gate(n: int) -> int:
    await _gates[0].wait()
    return n


@workflow
async def waiting(n: int) -> int:
    return await at_the_gate(n)


def main(kind: str, **parameters: Any) -> None:
    """Runs one kind, and tells its figures and its row."""
    kinds: dict[str, Callable[..., Coroutine[Any, Any, Outcome]]]
    kinds = {
        "blocked": wait_at_the_gate,
        "burst": start_at_once,
        "fed": start_in_slices,
        "tuned": start_tuned,
    }
    figures, row = asyncio.run(kinds[kind](**parameters))
    say(measured=[figures, row | {"mode": kind}])


async def wait_at_the_gate(url: str, few: int, many: int) -> Outcome:
    """Lets `few`, then `many` executions wait in a step: bytes per execution of the growth in between."""
    gate = Gate()
    _gates[:] = [gate]
    row: dict[str, Any] = {}
    async with AsyncEngine(url, max_running=many + 1) as engine:
        say(ready=True)
        hear()
        written, tally = bytes_written(), Tally(many)
        handles: list[AsyncHandle[int]] = []

        async def start(n: int) -> None:
            begun = time.perf_counter()
            handles.append(await engine.start(waiting, n))
            tally.took.append(time.perf_counter() - begun)

        async def grow(most: int) -> None:
            while len(handles) < most:
                more = range(len(handles), min(len(handles) + SLICE, most))
                await asyncio.gather(*[start(n) for n in more])
                say(done=len(handles))
            await gate.filled(most)

        with counted(row, engine):
            begun = time.perf_counter()
            await grow(few)
            # what nobody needs any more must not hide growth; what is garbage after it counts
            gc.collect()
            before = memory("VmRSS")
            await grow(many)
            each = (memory("VmRSS") - before) / (many - few)
            row |= tally.row(time.perf_counter() - begun)
        gate.open()
        # handles are in the order of their acknowledgements
        outputs = sorted([await handle.result() for handle in handles])
        if outputs != list(range(many)):
            raise AssertionError("the executions did not return their numbers")
    return {"each_bytes": each}, row | {"bytes_written": bytes_written() - written, "concurrency": many}


class Heartbeat:
    """A task that wants to go on every millisecond, and notes how long it had to wait at most."""

    def __init__(self) -> None:
        self.longest: float = 0.0
        self._task = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            self.longest = max(self.longest, time.perf_counter() - before)

    async def settle(self) -> None:
        """Lets it beat for a moment, and forgets what it noted."""
        await asyncio.sleep(0.05)
        self.longest = 0.0

    async def end(self) -> float:
        """The longest time between two beats, in milliseconds."""
        # the beat that is under way counts
        await asyncio.sleep(0.01)
        self._task.cancel()
        return 1000 * self.longest


class Collections:
    """Notes how long the garbage collector, left as Python has it, kept everybody at most."""

    def __init__(self) -> None:
        self.longest: float = 0.0
        self._begun = 0.0

    def _note(self, phase: str, _: dict[str, int]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self._begun = now
        else:
            self.longest = max(self.longest, 1000 * (now - self._begun))

    def __enter__(self) -> Self:
        gc.callbacks.append(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._note)


class Flight:
    """How many workflows are between their start and their result."""

    def __init__(self) -> None:
        self.most: int = 0
        self._now = 0

    def __enter__(self) -> None:
        self._now += 1
        self.most = max(self.most, self._now)

    def __exit__(self, *_: object) -> None:
        self._now -= 1


async def start_at_once(url: str, many: int) -> Outcome:
    """As `asyncio.gather` starts them: all tasks are made, and begin, in a single turn of the loop, which
    nothing can interrupt. How much of that is asyncio's is measured without an engine after it."""

    async def gather(callers: list[Coroutine[Any, Any, None]]) -> None:
        await asyncio.gather(*callers)

    figures, row = await started(url, many, gather)

    async def bare() -> None:
        for _ in range(2):
            await asyncio.sleep(0)

    heartbeat = Heartbeat()
    await heartbeat.settle()
    await asyncio.gather(*[bare() for _ in range(many)])
    return figures | {"without_engine_ms": await heartbeat.end()}, row


async def start_in_slices(url: str, many: int) -> Outcome:
    """A slice in each turn of the loop, so that whatever blocks it is the engine."""

    async def feed(callers: list[Coroutine[Any, Any, None]]) -> None:
        async with asyncio.TaskGroup() as group:
            for first in range(0, len(callers), SLICE):
                for caller in callers[first : first + SLICE]:
                    group.create_task(caller)
                await asyncio.sleep(0)

    return await started(url, many, feed)


async def start_tuned(url: str, many: int) -> Outcome:
    """The same with a garbage collector that hardly ever looks at what is old."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 1_000, 1_000)
    return await start_in_slices(url, many)


async def started(
    url: str, many: int, begin: Callable[[list[Coroutine[Any, Any, None]]], Coroutine[Any, Any, None]]
) -> Outcome:
    """Starts so many no-op workflows with `begin`, each by a caller that waits for its result."""
    row: dict[str, Any] = {}
    async with AsyncEngine(url) as engine:
        say(ready=True)
        hear()
        written, tally, flight = bytes_written(), Tally(many), Flight()

        async def call(n: int) -> None:
            begun = time.perf_counter()
            with flight:
                output = await (await engine.start(counting, n, 0)).result()
            if output != n:
                raise AssertionError(f"workflow {n} returned {output!r}")
            tally.took.append(time.perf_counter() - begun)

        callers: list[Coroutine[Any, Any, None]] = [call(n) for n in range(many)]
        heartbeat = Heartbeat()
        await heartbeat.settle()
        with counted(row, engine), Collections() as collections:
            begun = time.perf_counter()
            await begin(callers)
            row |= tally.row(time.perf_counter() - begun)
        longest = await heartbeat.end()
    figures = {
        "peak_bytes": memory("VmHWM"),
        "longest_gap_ms": longest,
        "longest_collection_ms": collections.longest,
        "most_in_flight": flight.most,
    }
    return figures, row | {"bytes_written": bytes_written() - written, "concurrency": many}
