"""A program that kills itself after the engine has promised something; see test_kills.py.

Usage: `python kill_program.py URL PIPE MODE`. MODE is `pay`, `resume` or `finish`. With `finish` the program
does not kill itself: it prints both outputs.
"""

import os
import pathlib
import signal
import sys
import threading

from stepfast import Engine, current, step, workflow

FLAG_FILE = pathlib.Path(sys.argv[2] + ".flag")


def kill_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@step
def return_text() -> str:
    return "noted"


@step
def pay() -> str:
    context = current()
    if sys.argv[3] == "pay":
        with open(sys.argv[2], "w") as pipe:
            pipe.write(f"{context.idempotency_key}\n")
        kill_process()
    return context.idempotency_key


@workflow
def calls_pay() -> str:
    return_text()
    return pay()


is_resumed = threading.Event()


@step
def read_flag_file() -> str:
    if is_resumed.is_set():
        # the resumed execution must not end before the kill
        threading.Event().wait()
    return FLAG_FILE.read_text()


@workflow
def calls_read_flag_file() -> str:
    return read_flag_file()


if __name__ == "__main__":
    with Engine(sys.argv[1]) as engine:
        match sys.argv[3]:
            case "pay":
                engine.run(calls_pay.options(workflow_id="pays"))
            case "resume":
                try:
                    engine.run(calls_read_flag_file.options(workflow_id="reads"))
                except FileNotFoundError:
                    is_resumed.set()
                    if engine.resume("reads"):
                        kill_process()
            case "finish":
                # the execution may run already: the file must never be seen without its text
                whole = FLAG_FILE.with_suffix(".new")
                whole.write_text("read")
                whole.replace(FLAG_FILE)
                print(engine.get("pays").result(), engine.get("reads").result())
