"""A program that is killed at a promise: `python kill_program.py URL PIPE WHAT`.

WHAT is `pay`, `resume` or `finish`; with `finish` nothing kills the program, and it prints both outputs.
"""

import os
import pathlib
import signal
import sys
import threading

from stepfast import Engine, current, step, workflow

FLAG = pathlib.Path(sys.argv[2] + ".flag")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@step
def note() -> str:
    return "noted"


@step
def pay() -> str:
    here = current()
    if sys.argv[3] == "pay":
        with open(sys.argv[2], "w") as pipe:
            pipe.write(f"{here.idempotency_key}\n")
        die()
    return here.idempotency_key


@workflow
def pays() -> str:
    note()
    return pay()


resumed = threading.Event()


@step
def open_flag() -> str:
    if resumed.is_set():
        # the kill comes before any end
        threading.Event().wait()
    return FLAG.read_text()


@workflow
def reads() -> str:
    return open_flag()


if __name__ == "__main__":
    with Engine(sys.argv[1]) as engine:
        match sys.argv[3]:
            case "pay":
                engine.run(pays.options(workflow_id="pays"))
            case "resume":
                try:
                    engine.run(reads.options(workflow_id="reads"))
                except FileNotFoundError:
                    resumed.set()
                    if engine.resume("reads"):
                        die()
            case "finish":
                FLAG.write_text("read")
                print(engine.get("pays").result(), engine.get("reads").result())
