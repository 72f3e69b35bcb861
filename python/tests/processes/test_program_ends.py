"""Ends of programs: the next program continues their executions, without waiting after an orderly end."""

import json
import os
import pathlib
import signal
import sqlite3
import subprocess
import sys

import end_program
import pytest

PROGRAM = pathlib.Path(end_program.__file__)
#: For each ending: the signal that ends the program, None if the program ends by itself; the exit code; the
#: executions that the program has started, all of them if the list is empty.
ENDINGS: dict[str, tuple[signal.Signals | None, int, list[str]]] = {
    "run_is_interrupted": (signal.SIGINT, -signal.SIGINT, ["one"]),
    "wait_is_interrupted": (signal.SIGINT, -signal.SIGINT, []),
    "run_is_terminated": (signal.SIGTERM, -signal.SIGTERM, ["one"]),
    "run_in_another_thread_is_interrupted": (signal.SIGINT, -signal.SIGINT, ["one"]),
    "main_exits_inside": (None, 3, []),
    "main_raises_inside": (None, 1, []),
    "main_exits_without_close": (None, 3, []),
    "main_ends_without_close": (None, 0, []),
    "main_closes_while_bodies_block": (None, 0, []),
    "body_exits": (None, 3, ["one"]),
    "body_interrupts": (None, -signal.SIGINT, ["one"]),
    "code_exits": (None, 3, ["one"]),
    "bodies_exit_in_threads": (None, 0, []),
    "async_run_is_interrupted": (signal.SIGINT, -signal.SIGINT, ["one"]),
    "async_wait_is_interrupted": (signal.SIGINT, -signal.SIGINT, []),
    "async_wait_is_terminated": (signal.SIGTERM, -signal.SIGTERM, []),
    "async_main_exits_inside": (None, 3, []),
    "async_main_raises_inside": (None, 1, []),
    "async_main_ends_without_close": (None, 0, []),
    "loop_is_closed_without_close": (None, 0, []),
    "async_body_exits": (None, 3, ["one"]),
    "async_body_exits_in_run": (None, 3, ["one"]),
    "async_code_exits": (None, 3, ["one"]),
}


#: The endings in which bodies continue while the program ends.
ENDINGS_WITH_RELEASED_BODIES = {"wait_is_interrupted", "main_exits_inside", "main_raises_inside"}


#: The endings in which the engine outlives an inline run: until its end, the execution may have further runs.
ENDINGS_WITH_FURTHER_RUNS = {"async_run_is_interrupted"}


def count_owned_executions(url: str) -> int:
    """Returns the number of executions with an owner, by a query that bypasses the store."""
    query = "SELECT count(*) FROM executions WHERE owner IS NOT NULL"
    if url.startswith("sqlite:"):
        connection = sqlite3.connect(url.removeprefix("sqlite:"))
        try:
            return int(connection.execute(query).fetchone()[0])
        finally:
            connection.close()
    server, _, schema = url.partition("?schema=")
    query = query.replace("executions", f"{schema}.executions")
    answer = subprocess.run(["psql", "-qtA", server, "-c", query], check=True, capture_output=True, text=True)
    return int(answer.stdout)


def run_ending(
    name: str, url: str, log: pathlib.Path, signal_number: signal.Signals | None, arrivals: int
) -> tuple[int, str]:
    """Runs the program to its end, and returns its exit code and the text on stderr."""
    process = subprocess.Popen(
        [sys.executable, PROGRAM, name, url, log], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            assert process.stdout is not None
            if signal_number is not None:
                for _ in range(arrivals):
                    assert process.stdout.readline() == "in the body\n"
                os.kill(process.pid, signal_number)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    return process.returncode, errors


@pytest.mark.parametrize("name", ENDINGS)
def test_next_program_continues_executions(name: str, url: str, tmp_path: pathlib.Path) -> None:
    signal_number, code, ids = ENDINGS[name]
    ids = ids or end_program.WORKFLOW_IDS
    log = tmp_path / "log"
    exit_code, errors = run_ending(name, url, log, signal_number, len(ids))
    assert exit_code == code, errors
    assert "Fatal" not in errors and "destroyed" not in errors and "never retrieved" not in errors, errors
    if signal_number != signal.SIGTERM:
        # the worker has requeued its executions: no takeover is needed
        assert count_owned_executions(url) == 0

    kind = "async" if "async" in name or "loop" in name else "sync"
    finished = subprocess.run(
        [sys.executable, PROGRAM, "finish", url, log, kind, *ids], capture_output=True, text=True, timeout=60
    )
    assert finished.returncode == 0, finished.stderr
    outputs = json.loads(finished.stdout)
    assert list(outputs) == ids
    log_lines = log.read_text().splitlines()
    for id, output in outputs.items():
        first_count = sum(outcome.startswith("first") for outcome in output)
        # with released bodies, the code continues as far as the end permits
        assert (
            first_count >= end_program.ENDING_STEP
            if name in ENDINGS_WITH_RELEASED_BODIES
            else first_count == end_program.ENDING_STEP
        )
        assert output == [
            f"{'first' if i < first_count else 'second'} {i}" for i in range(end_program.STEP_COUNT)
        ]
        # the next program runs exactly the steps that have no recorded outcome
        for i, outcome in enumerate(output):
            assert log_lines.count(f"second {id} {i} begins") == outcome.startswith("second")
        if first_count < end_program.STEP_COUNT:
            assert f"first {id} 100 begins" not in log_lines, "a step began while the code unwound"
            assert log_lines.count(f"second {id} 100 begins") == 1
        start_count = log_lines.count(f"first {id} {end_program.ENDING_STEP} begins")
        assert (
            start_count >= 1
            if name in ENDINGS_WITH_FURTHER_RUNS
            else start_count == (name not in {"code_exits", "async_code_exits"})
        )


THREADS_PROGRAM = """
import sys, threading
from stepfast import Engine, Unavailable, step, workflow

@step
def return_number(n: int) -> int:
    return n

@workflow
def calls_step(n: int) -> int:
    return return_number(n)

sys.setswitchinterval(1e-5)
engine = Engine("memory:")
has_begun = threading.Semaphore(0)

def start_forever() -> None:
    while True:
        try:
            engine.start(calls_step, 1).result()
        except Unavailable:
            pass
        has_begun.release()

for _ in range(8):
    threading.Thread(target=start_forever, daemon=True).start()
for _ in range(8):
    has_begun.acquire()
"""

LOOP_PROGRAM = """
import asyncio, sys, threading
from stepfast import AsyncEngine, Unavailable, step, workflow

@step
async def return_number(n: int) -> int:
    return n

@workflow
async def calls_step(n: int) -> int:
    return await return_number(n)

sys.setswitchinterval(1e-5)
has_begun = threading.Semaphore(0)

async def start_forever(engine: AsyncEngine) -> None:
    while True:
        try:
            await (await engine.start(calls_step, 1))
        except Unavailable:
            await asyncio.sleep(0)
        has_begun.release()

async def main() -> None:
    async with AsyncEngine("memory:") as engine:
        await asyncio.gather(*(start_forever(engine) for _ in range(8)))

threading.Thread(target=asyncio.run, args=(main(),), daemon=True).start()
for _ in range(8):
    has_begun.acquire()
"""

WAITING_PROGRAM = """
import contextlib, sys, threading
from stepfast import Engine, Unavailable, sleep, workflow

@workflow
def sleeps_one_hour() -> None:
    sleep(3600)

sys.setswitchinterval(1e-5)
engine = Engine("memory:")
handles = [engine.start(sleeps_one_hour) for _ in range(4)]
has_begun = threading.Semaphore(0)

def wait_for_result(n: int) -> None:
    has_begun.release()
    with contextlib.suppress(Unavailable):
        handles[n % 4].result()

for n in range(100):
    threading.Thread(target=wait_for_result, args=(n,), daemon=True).start()
for _ in range(100):
    has_begun.acquire()
"""


FIRST_WAIT_PROGRAM = """
import contextlib, threading, time
from stepfast import Engine, Unavailable, sleep, workflow

@workflow
def sleeps_one_hour() -> None:
    sleep(3600)

engine = Engine("memory:")
handle = engine.start(sleeps_one_hour)
has_begun = threading.Event()
main_thread = threading.main_thread

def slow_main_thread() -> threading.Thread:
    # native code calls this in a thread that waits for the first time
    if threading.current_thread() is not main_thread():
        has_begun.set()
        end_time = time.monotonic() + 0.5
        while time.monotonic() < end_time:
            pass
    return main_thread()

def wait_for_result() -> None:
    with contextlib.suppress(Unavailable):
        handle.result()

threading.main_thread = slow_main_thread
threading.Thread(target=wait_for_result, daemon=True).start()
has_begun.wait()
"""


@pytest.mark.parametrize(
    ("source", "times"),
    [(THREADS_PROGRAM, 40), (LOOP_PROGRAM, 20), (WAITING_PROGRAM, 20), (FIRST_WAIT_PROGRAM, 1)],
    ids=["threads", "loop", "waiting", "first wait"],
)
def test_program_ends_while_daemon_threads_use_its_engine(source: str, times: int) -> None:
    """Python ends such threads where they return to the interpreter, never inside native code."""
    for _ in range(times):
        program = subprocess.run(
            [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False
        )
        assert (program.returncode, program.stderr) == (0, "")
