"""A program that is interrupted in a step.

Usage: `python interrupt_program.py URL PIPE`. With `-` as PIPE, the interrupted execution continues to its
end.
"""

import os
import signal
import sys

from stepfast import Engine, step, workflow


@step
def one() -> int:
    return os.getpid()


@step
def stay() -> int:
    if sys.argv[2] != "-":
        with open(sys.argv[2], "w") as pipe:
            pipe.write(f"{os.getpid()}\n")
        while True:
            signal.pause()
    return os.getpid()


@workflow
def stays() -> list[int]:
    return [one(), stay(), os.getpid()]


if __name__ == "__main__":
    engine = Engine(sys.argv[1])
    try:
        print(*engine.run(stays.options(workflow_id="stays")))
    finally:
        # nothing is left to be waited for
        engine.close(grace=3600)
