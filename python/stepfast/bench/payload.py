"""`bench payload`: a workflow of seven steps that return 1 byte to 1 MB, and one whose single step returns
the same bytes at once.

The random data is made before the clock starts: what is timed is the engine. The program asks for one run at
a time, between measurements of its own.
"""

from __future__ import annotations

import os
import time
from typing import Any

from stepfast import Engine, Step, Workflow, step, workflow
from stepfast.bench.wire import hear, say

SIZES = [10**i for i in range(7)]

#: What the steps of the next run return.
_made: list[bytes] = []
#: When that run was asked for.
_asked_at = 0.0


@step(retries=3)
def size_step(i: int) -> bytes:
    return _made[i]


@step(retries=3, speculative=True)
def speculative_size_step(i: int) -> bytes:
    return _made[i]


@step(retries=3)
def batch_size_step(count: int) -> bytes:
    return b"".join(_made[:count])


def seven(call: Step[[int], bytes]) -> list[float]:
    """Milliseconds until the code begins, and of each of seven steps."""
    clock = time.perf_counter
    times = [1000 * (clock() - _asked_at)]
    for i in range(len(SIZES)):
        begun = clock()
        value = call(i)
        times.append(1000 * (clock() - begun))
        # the same object in a first run: it takes no time to compare
        if value != _made[i]:
            raise AssertionError(f"step {i} did not return its {SIZES[i]} bytes")
    return times


@workflow
def ordinary() -> list[float]:
    return seven(size_step)


@workflow(durable_reads=True)
def durable() -> list[float]:
    return seven(size_step)


@workflow
def speculative() -> list[float]:
    return seven(speculative_size_step)


@workflow
def batched() -> list[float]:
    times = [1000 * (time.perf_counter() - _asked_at)]
    begun = time.perf_counter()
    value = batch_size_step(len(SIZES))
    times.append(1000 * (time.perf_counter() - begun))
    if len(value) != sum(SIZES):
        raise AssertionError(f"the step returned {len(value)} bytes, not {sum(SIZES)}")
    return times


ARMS: dict[str, Workflow[[], list[float]]] = {
    arm.name: arm for arm in (ordinary, durable, speculative, batched)
}


def main(url: str) -> None:
    """Runs whatever is asked for, until nothing is."""
    with Engine(url) as engine:
        say(ready=True)
        while True:
            say(times=run(engine, ARMS[hear()["arm"]]))


def run(engine: Engine, arm: Workflow[[], list[float]]) -> dict[str, Any]:
    """One run: milliseconds to make the data, until the code begins, of each step, and from the call to the
    durable output."""
    global _asked_at
    begun = time.perf_counter()
    _made[:] = [os.urandom(size) for size in SIZES]
    _asked_at = time.perf_counter()
    begin, *steps = engine.run(arm)
    total = 1000 * (time.perf_counter() - _asked_at)
    return {"made": 1000 * (_asked_at - begun), "begin": begin, "steps": steps, "total": total}
