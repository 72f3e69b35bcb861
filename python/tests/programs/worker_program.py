"""A worker that a test ends by a signal.

Usage: `python worker_program.py URL PIPE GRACE [async]`. The worker writes a line into PIPE when its engine
is open and handles signals, when a body begins, and when the worker has drained. If the worker fails, the
last line has the reason.
"""

import asyncio
import os
import pathlib
import signal
import sys
import threading
import time

from stepfast import AsyncEngine, Engine, SchemaMismatch, step, workflow


def write_line(text: str) -> None:
    with open(sys.argv[2], "a") as pipe:
        pipe.write(f"{os.getpid()} {text}\n")


set_handler = signal.signal


def set_handler_and_report(number, handler):
    """Sets the handler of a signal, and reports `open` as soon as `work` handles both signals.

    A test that sends a signal earlier would end the process: Python's own handlers are still in place.
    """
    previous = set_handler(number, handler)
    if signal.getsignal(signal.SIGTERM) is signal.getsignal(signal.SIGINT):
        write_line("open")
    return previous


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


def send_signal_to_this_thread() -> None:
    """Sends SIGTERM to the thread that calls, which is not the main thread."""
    # the main thread waits by then
    time.sleep(0.3)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)


@step
def signal_in_thread() -> int:
    send_signal_to_this_thread()
    return os.getpid()


@workflow
def worker_ends_itself() -> int:
    return signal_in_thread()


@step
async def signal_beside_loop() -> int:
    await asyncio.to_thread(send_signal_to_this_thread)
    return os.getpid()


@workflow
async def worker_ends_itself_on_loop() -> int:
    return await signal_beside_loop()


async def work_on_loop() -> None:
    async with AsyncEngine(sys.argv[1]) as engine:
        await engine.work(float(sys.argv[3]))


def work_in_threads() -> None:
    with Engine(sys.argv[1]) as engine:
        engine.work(float(sys.argv[3]))


if __name__ == "__main__":
    signal.signal = set_handler_and_report
    try:
        if len(sys.argv) > 4:
            asyncio.run(work_on_loop())
        else:
            work_in_threads()
        write_line("drained")
    except SchemaMismatch as error:
        write_line(error.code)
        raise
