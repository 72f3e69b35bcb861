"""Measures what DBOS does without its control plane when a process is killed while it runs workflows.

Two processes with different executor ids share one database. One of them has started workflows and is killed. The
program counts the workflows by status after the kill, and again after a pause. Then the program starts a process with
the executor id of the killed process. This process returns the workflows to a queue, from which any process may take them.
The program prints one line of JSON.
"""

import argparse
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from typing import TypeAlias

import psycopg
from database import VERSION, create_database, make_config, print_result
from dbos import DBOS

#: The lines that executors print, each with the executor id.
OutputQueue: TypeAlias = "queue.Queue[tuple[str, str]]"


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


def run_executor(url: str, executor_id: str, workflows: int) -> None:
    """Runs DBOS in this process, until the standard input is closed."""
    DBOS(config=make_config(url, executor_id))
    DBOS.launch()
    for number in range(workflows):
        DBOS.start_workflow(long_workflow, number)
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)


class Executor:
    """A process of DBOS.

    Args:
        url: The URL of the database.
        executor_id: The executor id of the process.
        workflows: The number of workflows that the process starts.
        output: The queue that receives the lines that the process prints. Executors may share it.
    """

    def __init__(self, url: str, executor_id: str, workflows: int, output: OutputQueue) -> None:
        command = [sys.executable, __file__, url, "--executor", executor_id, "--many", str(workflows)]
        self.executor_id, self.output = executor_id, output
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.reader = threading.Thread(target=self.read_output, daemon=True)
        self.reader.start()

    def read_output(self) -> None:
        """Puts the lines of the process into the queue, until the process ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output.put((self.executor_id, line))


def wait_for_line(output: OutputQueue, prefix: str) -> str:
    """Waits for a line that begins with the prefix. Returns the executor id of its process."""
    while True:
        executor_id, line = output.get(timeout=120)
        if line.startswith(prefix):
            return executor_id


def count_statuses(url: str) -> dict[str, int]:
    """Returns the number of workflows for each status and executor id."""
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "SELECT status || ' of ' || coalesce(executor_id, 'no executor'), count(*)"
            " FROM dbos.workflow_status GROUP BY 1"
        )
        return {name: count for name, count in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="URL of the Postgres server; its role must be allowed to create databases")
    parser.add_argument("--many", type=int, default=10, help="number of workflows in the killed process")
    parser.add_argument("--seconds", type=float, default=60, help="pause after the kill")
    parser.add_argument("--executor", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.executor:
        run_executor(options.url, options.executor, options.many)
        return
    with create_database(options.url) as url:
        executors: list[Executor] = []
        output: OutputQueue = queue.Queue()

        def start_executor(executor_id: str, workflows: int) -> Executor:
            executors.append(Executor(url, executor_id, workflows, output))
            return executors[-1]

        try:
            victim = start_executor("a", options.many)
            wait_for_line(output, "ready")
            start_executor("b", 0)
            wait_for_line(output, "ready")
            victim.process.send_signal(signal.SIGKILL)
            victim.process.wait()
            victim.reader.join()
            killed_at = time.monotonic()
            statuses_at_kill = count_statuses(url)
            # lines of the killed process do not count
            while not output.empty():
                output.get()
            time.sleep(options.seconds)
            statuses_after_pause, pause_seconds = count_statuses(url), time.monotonic() - killed_at
            steps_begun_meanwhile = output.qsize()
            restarted_at = time.monotonic()
            start_executor("a", 0)
            begun_by = wait_for_line(output, "begun")
            print_result(
                experiment="takeover",
                version=VERSION,
                killed_with=options.many,
                at_the_kill=statuses_at_kill,
                after_seconds=pause_seconds,
                then=statuses_after_pause,
                steps_begun_meanwhile=steps_begun_meanwhile,
                begun_after_restart_of_the_same_executor_seconds=time.monotonic() - restarted_at,
                begun_by=begun_by,
            )
        finally:
            for executor in executors:
                executor.process.kill()
                executor.process.wait()


if __name__ == "__main__":
    main()
