"""A program that Ctrl-C interrupts in a step; see test_interrupt.py.

Usage: `python interrupt_program.py URL PIPE`. With `-` as PIPE, the interrupted execution continues to its
end.
"""

import os
import select
import signal
import socket
import sys

from stepfast import Engine, step, workflow

signalled, signals = socket.socketpair()


@step
def return_pid() -> int:
    return os.getpid()


@step
def block_until_signal() -> int:
    if sys.argv[2] != "-":
        with open(sys.argv[2], "w") as pipe:
            pipe.write(f"{os.getpid()}\n")
        # `signal.pause` would miss a signal that arrives just before it
        while True:
            select.select([signalled], [], [])
    return os.getpid()


@workflow
def calls_blocking_step() -> list[int]:
    return [return_pid(), block_until_signal(), os.getpid()]


if __name__ == "__main__":
    signals.setblocking(False)
    signal.set_wakeup_fd(signals.fileno())
    engine = Engine(sys.argv[1])
    try:
        print(*engine.run(calls_blocking_step.options(workflow_id="interrupted")))
    finally:
        # no execution is left that the close would wait for
        engine.close(grace=3600)
