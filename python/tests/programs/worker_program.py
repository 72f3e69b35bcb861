"""A worker that a test ends by a signal.

Usage: `python worker_program.py URL PIPE GRACE [async]`. The worker writes a line into PIPE when it is open,
when a body begins, and when it has drained, or the reason why it has not.
"""

import asyncio
import os
import pathlib
import sys
import time

from stepfast import AsyncEngine, Engine, SchemaMismatch, step, workflow


def tell(what: str) -> None:
    with open(sys.argv[2], "a") as pipe:
        pipe.write(f"{os.getpid()} {what}\n")


@step
def until_there(path: str) -> int:
    tell("body")
    while not pathlib.Path(path).exists():
        time.sleep(0.01)
    return os.getpid()


@workflow
def worker_waits(path: str) -> int:
    return until_there(path)


@step
async def until_there_on_loop(path: str) -> int:
    tell("body")
    while not pathlib.Path(path).exists():
        await asyncio.sleep(0.01)
    return os.getpid()


@workflow
async def worker_waits_on_loop(path: str) -> int:
    return await until_there_on_loop(path)


async def on_loop() -> None:
    async with AsyncEngine(sys.argv[1]) as engine:
        tell("open")
        await engine.work(float(sys.argv[3]))


def in_threads() -> None:
    with Engine(sys.argv[1]) as engine:
        tell("open")
        engine.work(float(sys.argv[3]))


if __name__ == "__main__":
    try:
        if len(sys.argv) > 4:
            asyncio.run(on_loop())
        else:
            in_threads()
        tell("drained")
    except SchemaMismatch as error:
        tell(error.code)
        raise
