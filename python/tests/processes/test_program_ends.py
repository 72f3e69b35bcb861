"""However a program ends, the next one goes on where it was: nothing is lost, nothing is recorded twice, and
after an orderly end it need not wait."""

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
#: What the program is told by signal; `None` if it ends by itself. How it ends then. The executions it has
#: begun, all of them if none is named.
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


#: Those in which bodies go on when the program ends.
RELEASED = {"wait_is_interrupted", "main_exits_inside", "main_raises_inside"}


#: Those whose engine outlives the caller that ran the code: until it ends, too, the execution goes on.
OUTLIVED = {"async_run_is_interrupted"}


def owned(url: str) -> int:
    """How many executions belong to some worker, asked past the store's code."""
    asked = "SELECT count(*) FROM executions WHERE owner IS NOT NULL"
    if url.startswith("sqlite:"):
        connection = sqlite3.connect(url.removeprefix("sqlite:"))
        try:
            return int(connection.execute(asked).fetchone()[0])
        finally:
            connection.close()
    asked = asked.replace("executions", "stepfast.executions")
    answer = subprocess.run(["psql", "-qtA", url, "-c", asked], check=True, capture_output=True, text=True)
    return int(answer.stdout)


def ended(
    name: str, url: str, log: pathlib.Path, told: signal.Signals | None, arrivals: int
) -> tuple[int, str]:
    """Runs the program to its end: its exit code, and what it has said on stderr."""
    process = subprocess.Popen(
        [sys.executable, PROGRAM, name, url, log], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            assert process.stdout is not None
            if told is not None:
                for _ in range(arrivals):
                    assert process.stdout.readline() == "in the body\n"
                os.kill(process.pid, told)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    return process.returncode, errors


@pytest.mark.parametrize("name", ENDINGS)
def test_the_next_program_goes_on(name: str, url: str, tmp_path: pathlib.Path) -> None:
    told, code, ids = ENDINGS[name]
    ids = ids or end_program.IDS
    log = tmp_path / "log"
    exit_code, errors = ended(name, url, log, told, len(ids))
    assert exit_code == code, errors
    assert "Fatal" not in errors and "destroyed" not in errors and "never retrieved" not in errors, errors
    if told != signal.SIGTERM:
        # handed back: nobody has to find out that it is gone
        assert owned(url) == 0

    kind = "async" if "async" in name or "loop" in name else "sync"
    finished = subprocess.run(
        [sys.executable, PROGRAM, "finish", url, log, kind, *ids], capture_output=True, text=True, timeout=60
    )
    assert finished.returncode == 0, finished.stderr
    outputs = json.loads(finished.stdout)
    assert list(outputs) == ids
    begun = log.read_text().splitlines()
    for id, output in outputs.items():
        firsts = sum(outcome.startswith("first") for outcome in output)
        # code whose bodies are told to go on right before the end comes as far as it can
        assert firsts >= end_program.LAST if name in RELEASED else firsts == end_program.LAST
        assert output == [f"{'first' if i < firsts else 'second'} {i}" for i in range(end_program.STEPS)]
        # what was recorded is not run again, what was not is
        for i, outcome in enumerate(output):
            assert begun.count(f"second {id} {i} begins") == outcome.startswith("second")
        if firsts < end_program.STEPS:
            assert f"first {id} 100 begins" not in begun, "a step began while the code unwound"
            assert begun.count(f"second {id} 100 begins") == 1
        often = begun.count(f"first {id} {end_program.LAST} begins")
        assert often >= 1 if name in OUTLIVED else often == (name not in {"code_exits", "async_code_exits"})


BUSY = """
import sys, threading
from stepfast import Engine, Unavailable, step, workflow

@step
def one(n: int) -> int:
    return n

@workflow
def ones(n: int) -> int:
    return one(n)

sys.setswitchinterval(1e-5)
engine = Engine("memory:")
begun = threading.Semaphore(0)

def use() -> None:
    while True:
        try:
            engine.start(ones, 1).result()
        except Unavailable:
            pass
        begun.release()

for _ in range(8):
    threading.Thread(target=use, daemon=True).start()
for _ in range(8):
    begun.acquire()
"""

BUSY_LOOP = """
import asyncio, sys, threading
from stepfast import AsyncEngine, Unavailable, step, workflow

@step
async def one(n: int) -> int:
    return n

@workflow
async def ones(n: int) -> int:
    return await one(n)

sys.setswitchinterval(1e-5)
begun = threading.Semaphore(0)

async def use(engine: AsyncEngine) -> None:
    while True:
        try:
            await (await engine.start(ones, 1))
        except Unavailable:
            await asyncio.sleep(0)
        begun.release()

async def main() -> None:
    async with AsyncEngine("memory:") as engine:
        await asyncio.gather(*(use(engine) for _ in range(8)))

threading.Thread(target=asyncio.run, args=(main(),), daemon=True).start()
for _ in range(8):
    begun.acquire()
"""

WAITING = """
import contextlib, sys, threading
from stepfast import Engine, Unavailable, sleep, workflow

@workflow
def sleeps() -> None:
    sleep(3600)

sys.setswitchinterval(1e-5)
engine = Engine("memory:")
handles = [engine.start(sleeps) for _ in range(4)]
begun = threading.Semaphore(0)

def wait(n: int) -> None:
    begun.release()
    with contextlib.suppress(Unavailable):
        handles[n % 4].result()

for n in range(100):
    threading.Thread(target=wait, args=(n,), daemon=True).start()
for _ in range(100):
    begun.acquire()
"""


FIRST_WAIT = """
import contextlib, threading, time
from stepfast import Engine, Unavailable, sleep, workflow

@workflow
def sleeps() -> None:
    sleep(3600)

engine = Engine("memory:")
handle = engine.start(sleeps)
begun = threading.Event()
main_thread = threading.main_thread

def slow_main_thread() -> threading.Thread:
    # what native code asks a thread that waits for the first time
    if threading.current_thread() is not main_thread():
        begun.set()
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            pass
    return main_thread()

def wait() -> None:
    with contextlib.suppress(Unavailable):
        handle.result()

threading.main_thread = slow_main_thread
threading.Thread(target=wait, daemon=True).start()
begun.wait()
"""


@pytest.mark.parametrize(
    ("source", "times"),
    [(BUSY, 40), (BUSY_LOOP, 20), (WAITING, 20), (FIRST_WAIT, 1)],
    ids=["threads", "loop", "waiting", "first wait"],
)
def test_a_program_ends_in_order_while_daemon_threads_use_its_engine(source: str, times: int) -> None:
    """Python ends such threads where they come back for the interpreter, never below native code."""
    for _ in range(times):
        program = subprocess.run(
            [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False
        )
        assert (program.returncode, program.stderr) == (0, "")
