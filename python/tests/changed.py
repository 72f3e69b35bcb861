"""A workflow whose code changes between a crash and its resumption; see test_changed.py."""

import os
import signal
import sys

from stepfast import Engine, step, workflow

CODE = os.environ.get("CODE", "first")


@step
def charge(n: int) -> int:
    return n


@step
def refund(n: int) -> int:
    return -n


@step
def ship(n: int) -> int:
    if os.environ.get("KILL"):
        os.kill(os.getpid(), signal.SIGKILL)
    return n


@workflow
def order(n: int) -> int:
    total = charge(n) if CODE == "first" else refund(n)
    return total + ship(n)


if __name__ == "__main__":
    with Engine(sys.argv[1]) as engine:
        print(engine.start(order, 7, workflow_id="order-7").result())
