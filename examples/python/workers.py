"""Two workers, one of which is killed, and a client that starts executions for them: python workers.py

STEPFAST_STORE names the store, by default a file. On Postgres, workers and clients may be on any number of
machines."""

import os
import subprocess
import sys
import time

from stepfast import Client, Engine, step, workflow

STORE = os.environ.get("STEPFAST_STORE", "sqlite://workers.db")


@step
def pack(item: str) -> str:
    time.sleep(0.05)
    return f"[{item}]"


@workflow
def order(item: str) -> str:
    return pack(item) + pack("a card")


def work() -> None:
    """Runs a worker until SIGTERM; then it claims nothing new, and finishes its running executions."""
    with Engine(STORE) as engine:
        engine.work(grace=30)


def start_orders() -> None:
    """Starts executions as a web process does; workers run them."""
    with Client(STORE) as client:
        handles = [client.start(order, f"tea {n}") for n in range(100)]
        print(handles[0].result())
        workers[0].kill()  # SIGKILL: its executions continue in the other worker
        print(len(client.results(handles)), "orders are packed")


if __name__ == "__main__":
    if sys.argv[1:] == ["work"]:
        work()
    else:
        workers = [subprocess.Popen([sys.executable, __file__, "work"]) for _ in range(2)]
        try:
            start_orders()
        finally:
            for worker in workers:
                worker.terminate()
                worker.wait()
