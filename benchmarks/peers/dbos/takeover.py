"""What becomes of DBOS's workflows when their process is killed, without its control plane: an experiment.

Two processes with executor ids of their own run on one database. One has started workflows and is killed. For a while
nothing is done, with statuses before and after; then a process with the dead one's executor id is started. It puts the
workflows back into a queue, from which any process may take them. One line of JSON.
"""

import argparse
import os
import queue
import signal
import subprocess
import sys
import threading
import time

import psycopg
from database import VERSION, configured, fresh, say
from dbos import DBOS


@DBOS.step()
def short_step(number: int) -> int:
    print(f"begun {number}", flush=True)
    time.sleep(0.1)
    return number


@DBOS.workflow()
def long_workflow(number: int) -> int:
    for _ in range(100_000):
        short_step(number)
    return number


def work(url: str, name: str, many: int) -> None:
    """A process of DBOS, until its standard input is closed."""
    DBOS(config=configured(url, name))
    DBOS.launch()
    for number in range(many):
        DBOS.start_workflow(long_workflow, number)
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)


class Executor:
    """A process with this executor id, and what it tells, at the end of a queue that others may share."""

    def __init__(self, url: str, name: str, many: int, told: "queue.Queue[tuple[str, str]]") -> None:
        command = [sys.executable, __file__, url, "--executor", name, "--many", str(many)]
        self.name, self.told = name, told
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.told.put((self.name, line))


def hear(told: "queue.Queue[tuple[str, str]]", wanted: str) -> str:
    """Waits until one of them tells that; which one."""
    while True:
        name, line = told.get(timeout=120)
        if line.startswith(wanted):
            return name


def statuses(url: str) -> dict[str, int]:
    """How many workflows have which status under which executor id."""
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "SELECT status || ' of ' || coalesce(executor_id, 'nobody'), count(*) FROM dbos.workflow_status GROUP BY 1"
        )
        return {name: count for name, count in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="of the Postgres server")
    parser.add_argument("--many", type=int, default=10, help="workflows that run when the process is killed")
    parser.add_argument("--seconds", type=float, default=60, help="how long the survivor has")
    parser.add_argument("--executor", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.executor:
        work(asked.url, asked.executor, asked.many)
        return
    with fresh(asked.url) as url:
        executors: list[Executor] = []
        told: queue.Queue[tuple[str, str]] = queue.Queue()

        def start(name: str, many: int) -> Executor:
            executors.append(Executor(url, name, many, told))
            return executors[-1]

        try:
            victim = start("a", asked.many)
            hear(told, "ready")
            start("b", 0)
            hear(told, "ready")
            victim.process.send_signal(signal.SIGKILL)
            victim.process.wait()
            victim.reader.join()
            killed_at = time.monotonic()
            before = statuses(url)
            # what the dead one has told
            while not told.empty():
                told.get()
            time.sleep(asked.seconds)
            after, waited = statuses(url), time.monotonic() - killed_at
            begun_meanwhile = told.qsize()
            restarted_at = time.monotonic()
            start("a", 0)
            begun_by = hear(told, "begun")
            say(
                experiment="takeover",
                version=VERSION,
                killed_with=asked.many,
                at_the_kill=before,
                after_seconds=waited,
                then=after,
                steps_begun_meanwhile=begun_meanwhile,
                begun_after_restart_of_the_same_executor_seconds=time.monotonic() - restarted_at,
                begun_by=begun_by,
            )
        finally:
            for executor in executors:
                executor.process.kill()
                executor.process.wait()


if __name__ == "__main__":
    main()
