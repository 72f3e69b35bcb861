"""A worker that a test ends by a signal.

Usage: `python worker_program.py URL PIPE GRACE [async]`. The worker writes a line into PIPE when it is open,
when a body begins, and when the worker has drained. If the worker fails, the last line has the reason.
"""

import asyncio
import os
import pathlib
import sys
import time

from stepfast import AsyncEngine, Engine, SchemaMismatch, step, workflow


def write_line(text: str) -> None:
    with open(sys.argv[2], "a") as pipe:
        pipe.write(f"{os.getpid()} {text}\n")


@step
def wait_for_file(path: str) -> int:
    write_line("body")
    while not pathlib.Path(path).exists():
        time.sleep(0.01)
    return os.getpid()


@workflow
def worker_waits(path: str) -> int:
    return wait_for_file(path)


@step
async def wait_for_file_on_loop(path: str) -> int:
    write_line("body")
    while not pathlib.Path(path).exists():
        await asyncio.sleep(0.01)
    return os.getpid()


@workflow
async def worker_waits_on_loop(path: str) -> int:
    return await wait_for_file_on_loop(path)


async def work_on_loop() -> None:
    async with AsyncEngine(sys.argv[1]) as engine:
        write_line("open")
        await engine.work(float(sys.argv[3]))


def work_in_threads() -> None:
    with Engine(sys.argv[1]) as engine:
        write_line("open")
        engine.work(float(sys.argv[3]))


if __name__ == "__main__":
    try:
        if len(sys.argv) > 4:
            asyncio.run(work_on_loop())
        else:
            work_in_threads()
        write_line("drained")
    except SchemaMismatch as error:
        write_line(error.code)
        raise
