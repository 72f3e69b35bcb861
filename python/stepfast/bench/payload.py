"""`bench payload`: a workflow of seven steps that return 1 byte to 1 MB, and a workflow whose single step
returns the same bytes at once.

The random data is created before the clock starts, so only the engine is timed. The program requests one run
at a time, and makes measurements of its own between the runs.
"""

from __future__ import annotations

import os
import time
from typing import Any

from stepfast import Engine, Step, Workflow, step, workflow
from stepfast.bench.messages import receive, send

#: The sizes of the values that the seven steps return, in bytes.
SIZES = [10**i for i in range(7)]

#: The values that the steps of the next run return.
_step_values: list[bytes] = []
#: The time of the call that has started the run, in seconds.
_called_at = 0.0


@step(retries=3)
def size_step(i: int) -> bytes:
    return _step_values[i]


@step(retries=3, speculative=True)
def speculative_size_step(i: int) -> bytes:
    return _step_values[i]


@step(retries=3)
def batch_size_step(count: int) -> bytes:
    return b"".join(_step_values[:count])


def time_seven_steps(call: Step[[int], bytes]) -> list[float]:
    """Runs seven steps. Returns the time until the code began, and the time of each step, in milliseconds."""
    clock = time.perf_counter
    times = [1000 * (clock() - _called_at)]
    for i in range(len(SIZES)):
        begun = clock()
        value = call(i)
        times.append(1000 * (clock() - begun))
        # in a first run both values are the same object, so the comparison takes no time
        if value != _step_values[i]:
            raise AssertionError(f"step {i} did not return its {SIZES[i]} bytes")
    return times


@workflow(name="ordinary")
def run_ordinary_steps() -> list[float]:
    return time_seven_steps(size_step)


@workflow(name="durable", durable_reads=True)
def run_durable_steps() -> list[float]:
    return time_seven_steps(size_step)


@workflow(name="speculative")
def run_speculative_steps() -> list[float]:
    return time_seven_steps(speculative_size_step)


@workflow(name="batched")
def run_batched_step() -> list[float]:
    times = [1000 * (time.perf_counter() - _called_at)]
    begun = time.perf_counter()
    value = batch_size_step(len(SIZES))
    times.append(1000 * (time.perf_counter() - begun))
    if len(value) != sum(SIZES):
        raise AssertionError(f"the step returned {len(value)} bytes, not {sum(SIZES)}")
    return times


#: The workflows that are compared, by the names under which the program requests them.
ARMS: dict[str, Workflow[[], list[float]]] = {
    arm.name: arm for arm in (run_ordinary_steps, run_durable_steps, run_speculative_steps, run_batched_step)
}


def main(url: str) -> None:
    """Runs the requested workflows, until the program closes the input."""
    with Engine(url) as engine:
        send(ready=True)
        while True:
            send(times=measure_run(engine, ARMS[receive()["arm"]]))


def measure_run(engine: Engine, arm: Workflow[[], list[float]]) -> dict[str, Any]:
    """Runs the workflow `arm` once. Returns the times in milliseconds.

    `made` is the time for creating the data. `begin` is the time from the call to the first line of the
    workflow's code. `steps` has the time of each step. `total` is the time from the call to the durable
    output.
    """
    global _called_at
    begun = time.perf_counter()
    _step_values[:] = [os.urandom(size) for size in SIZES]
    _called_at = time.perf_counter()
    begin, *steps = engine.run(arm)
    total = 1000 * (time.perf_counter() - _called_at)
    return {"made": 1000 * (_called_at - begun), "begin": begin, "steps": steps, "total": total}
