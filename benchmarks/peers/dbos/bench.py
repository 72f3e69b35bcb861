"""Measures DBOS for Python on Postgres: no-op workflows, queued ones, and the payload experiment.

Clients start the workflows as users of DBOS do: they wait for the handle, and then for the result. The program prints
one line of JSON per result.
"""

import argparse
import asyncio
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator

from database import (
    VERSION,
    count_unfinished,
    create_database,
    make_config,
    print_result,
    read_log_counters,
    read_settings,
)
from dbos import DBOS

#: The name of the queue.
QUEUE = "bench"
#: The number of clients that enqueue workflows concurrently.
ENQUEUEING_CLIENTS = 64
#: The pause before the server's counters are read. Idle sessions report their counts to the server every ten seconds.
COUNTER_DELAY_SECONDS = 12


@DBOS.workflow()
async def noop() -> None:
    pass


@DBOS.workflow()
async def return_begin_time() -> float:
    return time.perf_counter()


@DBOS.workflow()
def noop_sync() -> None:
    pass


@DBOS.step(retries_allowed=True)
def size_step(i: int) -> bytes:
    return os.urandom(10**i)


@DBOS.step(retries_allowed=True)
def batch_size_step(count: int) -> bytes:
    return b"".join(os.urandom(10**i) for i in range(count))


@DBOS.workflow()
def seven_steps() -> list[float]:
    """Returns the time of each step, in milliseconds."""
    times = []
    for i in range(7):
        begun = time.perf_counter()
        assert len(size_step(i)) == 10**i
        times.append((time.perf_counter() - begun) * 1000)
    return times


@DBOS.workflow()
def one_step() -> float:
    """Returns the time of the step, in milliseconds."""
    begun = time.perf_counter()
    assert len(batch_size_step(7)) == 1_111_111
    return (time.perf_counter() - begun) * 1000


class Tally:
    """The times and failures of a run's workflows. Any number of clients share it.

    Args:
        total: The number of workflows. Their numbers begin with 0.
    """

    def __init__(self, total: int) -> None:
        #: The numbers that no client has taken yet.
        self.numbers: Iterator[int] = iter(range(total))
        #: The times of the completed workflows, in milliseconds.
        self.times: list[float] = []
        self.failure_count = 0

    def record(self, begun: float) -> None:
        """Records a completed workflow, which began at `begun`."""
        self.times.append((time.perf_counter() - begun) * 1000)

    def record_failure(self, error: Exception) -> None:
        """Records a failed workflow. Prints the first failure."""
        self.failure_count += 1
        if self.failure_count == 1:
            print_result(experiment="error", message=repr(error))


def print_workflows(tally: Tally, seconds: float, **columns: object) -> None:
    """Prints the result of the experiment `workflows`.

    Args:
        tally: The tally of the run.
        seconds: The duration of the run.
        columns: Further columns of the result.
    """
    times = sorted(tally.times)
    print_result(
        experiment="workflows",
        mode="start",
        **columns,
        completed=len(times),
        failed=tally.failure_count,
        seconds=seconds,
        per_second=len(times) / seconds,
        p50_ms=statistics.median(times) if times else 0.0,
        p99_ms=times[min(len(times) - 1, len(times) * 99 // 100)] if times else 0.0,
        max_ms=times[-1] if times else 0.0,
    )


async def measure_tasks(clients: int, total: int) -> None:
    """Measures no-op workflows of clients that are tasks of one event loop."""
    tally = Tally(total)

    async def run_client() -> None:
        for _ in tally.numbers:
            begun = time.perf_counter()
            try:
                await (await DBOS.start_workflow_async(noop)).get_result()
                tally.record(begun)
            except Exception as error:
                tally.record_failure(error)

    begun = time.perf_counter()
    await asyncio.gather(*(run_client() for _ in range(clients)))
    print_workflows(tally, time.perf_counter() - begun, concurrency=clients, callers="tasks")


def measure_threads(clients: int, total: int) -> None:
    """Measures no-op workflows of clients that are threads."""
    tally, lock = Tally(total), threading.Lock()

    def run_client() -> None:
        while True:
            with lock:
                if next(tally.numbers, None) is None:
                    return
            begun = time.perf_counter()
            try:
                DBOS.start_workflow(noop_sync).get_result()
                with lock:
                    tally.record(begun)
            except Exception as error:
                with lock:
                    tally.record_failure(error)

    threads = [threading.Thread(target=run_client) for _ in range(clients)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print_workflows(tally, time.perf_counter() - begun, concurrency=clients, callers="threads")


async def measure_queue(url: str, total: int) -> None:
    """Measures a queue into which clients enqueue workflows, while the worker runs them. Waits for the last end."""
    semaphore = asyncio.Semaphore(ENQUEUEING_CLIENTS)

    async def enqueue() -> None:
        async with semaphore:
            await DBOS.enqueue_workflow_async(QUEUE, noop)

    await asyncio.sleep(COUNTER_DELAY_SECONDS)
    bytes_before, flushes_before = read_log_counters(url)
    begun = time.perf_counter()
    await asyncio.gather(*(enqueue() for _ in range(total)))
    enqueue_seconds = time.perf_counter() - begun
    # one query at a time for all workflows: thousands of waits for results would be most of DBOS's work
    while count_unfinished(url, QUEUE):
        await asyncio.sleep(0.01)
    seconds = time.perf_counter() - begun
    await asyncio.sleep(COUNTER_DELAY_SECONDS)
    bytes_after, flushes_after = read_log_counters(url)
    print_result(
        experiment="queue",
        mode="both",
        concurrency=ENQUEUEING_CLIENTS,
        completed=total,
        failed=0,
        seconds=seconds,
        enqueue_seconds=enqueue_seconds,
        per_second=total / seconds,
        bytes_each=(bytes_after - bytes_before) / total,
        flushes_each=(flushes_after - flushes_before) / total,
    )


async def measure_one_by_one(count: int) -> None:
    """Measures queued workflows one at a time: the time until a workflow begins, and the time until its result."""
    start_times, result_times = [], []
    for _ in range(count):
        begun = time.perf_counter()
        began_at = await (await DBOS.enqueue_workflow_async(QUEUE, return_begin_time)).get_result()
        result_times.append((time.perf_counter() - begun) * 1000)
        start_times.append((began_at - begun) * 1000)
    for mode, times in [("one at a time, to start", start_times), ("one at a time, to result", result_times)]:
        print_result(experiment="queue", mode=mode, concurrency=1, completed=count, p50_ms=statistics.median(times))


def measure_payload(rounds: int) -> None:
    """Measures the payload experiment: seven steps, and one step that returns the same bytes at once."""
    seven_times, one_times = [], []
    first_call = seven_steps()[0]
    one_step()
    for _ in range(rounds):
        seven_times.append(seven_steps())
        one_times.append(one_step())
    for i in range(7):
        p50 = statistics.median(times[i] for times in seven_times)
        print_result(experiment="payload", mode="step", size=10**i, completed=rounds, p50_ms=p50)
    p50_of_seven = statistics.median(sum(times) for times in seven_times)
    print_result(experiment="payload", mode="first call", size=1, completed=1, p50_ms=first_call)
    print_result(experiment="payload", mode="seven steps", completed=rounds, p50_ms=p50_of_seven)
    print_result(experiment="payload", mode="one batched step", completed=rounds, p50_ms=statistics.median(one_times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="URL of the Postgres server; its role must be allowed to create databases")
    parser.add_argument("--clients", default="1,32,256", help="numbers of clients that are tasks of one event loop")
    parser.add_argument("--threads", default="32", help="numbers of clients that are threads, with sync workflows")
    parser.add_argument("--iterations", type=int, default=2_000, help="number of workflows for each result")
    parser.add_argument("--rounds", type=int, default=20, help="number of rounds of the payload experiment")
    parser.add_argument(
        "--polling", type=float, default=0.1, help="polling interval of the queue in seconds (default of DBOS: 1)"
    )
    options = parser.parse_args()
    parse_numbers: Callable[[str], list[int]] = lambda text: [int(part) for part in text.split(",") if part]
    with create_database(options.url) as url:
        DBOS(config=make_config(url, "bench"))
        DBOS.launch()
        DBOS.register_queue(QUEUE, polling_interval_sec=options.polling)
        print_result(experiment="about", version=VERSION, polling_seconds=options.polling, **read_settings(url))
        try:
            # a warm-up, not measured
            for _ in range(20):
                DBOS.start_workflow(noop_sync).get_result()
            # first, while the process has no other work
            measure_payload(options.rounds)
            for clients in parse_numbers(options.clients):
                # a single client is slow, and few of its workflows suffice
                total = options.iterations if clients > 1 else max(options.iterations // 10, 20)
                asyncio.run(measure_tasks(clients, total))
            for threads in parse_numbers(options.threads):
                measure_threads(threads, options.iterations)
            asyncio.run(measure_queue(url, options.iterations))
            asyncio.run(measure_one_by_one(20))
        finally:
            DBOS.destroy()


if __name__ == "__main__":
    main()
