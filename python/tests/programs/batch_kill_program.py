"""A program that kills itself while it submits or runs a batch; see test_batch_kills.py.

Usage: `python batch_kill_program.py URL FILE MODE`. MODE is `submit`, `run` or `finish`. With `submit` the
inputs kill the program; with `run` the step of an item kills it. With `finish` it prints the counts and the
outputs as JSON.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator

from stepfast import AsyncEngine, Engine, step, workflow

URL, FILE, MODE = sys.argv[1:] if __name__ == "__main__" else ("", "", "")
#: The number of items.
ITEMS = 3_000
#: The item whose step kills the program, and the number of inputs after which they kill it.
KILL_AT = 2_500


def kill_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def write_line(n: int) -> None:
    with open(FILE, "a") as file:
        file.write(f"{n}\n")


@step
def square(n: int) -> int:
    write_line(n)
    if n == KILL_AT and MODE == "run":
        kill_process()
    return n * n


@step
async def square_async(n: int) -> int:
    write_line(n)
    if n == KILL_AT and MODE == "run":
        kill_process()
    return n * n


@workflow
def squares(n: int) -> int:
    return square(n)


@workflow
async def squares_async(n: int) -> int:
    return await square_async(n)


def inputs() -> Iterator[tuple[int]]:
    for n in range(ITEMS):
        if n == KILL_AT and MODE == "submit":
            kill_process()
        yield (n,)


def run_sync() -> None:
    with Engine(URL) as engine:
        batch = engine.submit_batch(squares, inputs(), batch_id="sync")
        counts = batch.wait()
        print(json.dumps([counts.submitted, counts.completed, [item.result() for item in batch.results()]]))


async def run_async() -> None:
    async with AsyncEngine(URL) as engine:
        batch = await engine.submit_batch(squares_async, inputs(), batch_id="async")
        counts = await batch.wait()
        results = [item.result() async for item in batch.results()]
        print(json.dumps([counts.submitted, counts.completed, results]))


if __name__ == "__main__":
    if FILE.endswith("async"):
        asyncio.run(run_async())
    else:
        run_sync()
