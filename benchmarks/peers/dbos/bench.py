"""DBOS for Python on Postgres: no-op workflows, queued ones, and the payload experiment. One line of JSON per result.

The workflows are started as its users start them, by clients that wait for the handle and then for the result.
"""

import argparse
import asyncio
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator

from database import VERSION, configured, fresh, left, logged, say, settings
from dbos import DBOS

QUEUE = "bench"
#: Seconds after which the server knows what idle sessions have done: they tell it every ten.
TOLD = 12


@DBOS.workflow()
async def noop() -> None:
    pass


@DBOS.workflow()
async def noting() -> float:
    return time.perf_counter()


@DBOS.workflow()
def noop_here() -> None:
    pass


@DBOS.step(retries_allowed=True)
def size_step(i: int) -> bytes:
    return os.urandom(10**i)


@DBOS.step(retries_allowed=True)
def batch_size_step(many: int) -> bytes:
    return b"".join(os.urandom(10**i) for i in range(many))


@DBOS.workflow()
def seven_steps() -> list[float]:
    took = []
    for i in range(7):
        begun = time.perf_counter()
        assert len(size_step(i)) == 10**i
        took.append((time.perf_counter() - begun) * 1000)
    return took


@DBOS.workflow()
def one_step() -> float:
    begun = time.perf_counter()
    assert len(batch_size_step(7)) == 1_111_111
    return (time.perf_counter() - begun) * 1000


def tell(experiment: str, mode: str, took: list[float], failed: int, seconds: float, **others: object) -> None:
    """Prints a result, of these times in milliseconds."""
    took.sort()
    last = took[-1] if took else 0.0
    say(
        experiment=experiment,
        mode=mode,
        **others,
        completed=len(took),
        failed=failed,
        seconds=seconds,
        per_second=len(took) / seconds,
        p50_ms=statistics.median(took) if took else 0.0,
        p99_ms=took[min(len(took) - 1, len(took) * 99 // 100)] if took else 0.0,
        max_ms=last,
    )


class Tally:
    """Times of operations by any number of clients, and how many more there are to do."""

    def __init__(self, total: int) -> None:
        self.numbers: Iterator[int] = iter(range(total))
        self.took: list[float] = []
        self.failed = 0

    def note(self, begun: float) -> None:
        self.took.append((time.perf_counter() - begun) * 1000)

    def fail(self, error: Exception) -> None:
        self.failed += 1
        if self.failed == 1:
            say(experiment="error", message=repr(error))


async def by_tasks(clients: int, total: int) -> None:
    tally = Tally(total)

    async def client() -> None:
        for _ in tally.numbers:
            begun = time.perf_counter()
            try:
                await (await DBOS.start_workflow_async(noop)).get_result()
                tally.note(begun)
            except Exception as error:
                tally.fail(error)

    begun = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    seconds = time.perf_counter() - begun
    tell("workflows", "start", tally.took, tally.failed, seconds, concurrency=clients, callers="tasks")


def by_threads(clients: int, total: int) -> None:
    tally, lock = Tally(total), threading.Lock()

    def client() -> None:
        while True:
            with lock:
                if next(tally.numbers, None) is None:
                    return
            begun = time.perf_counter()
            try:
                DBOS.start_workflow(noop_here).get_result()
                with lock:
                    tally.note(begun)
            except Exception as error:
                with lock:
                    tally.fail(error)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begun
    tell("workflows", "start", tally.took, tally.failed, seconds, concurrency=clients, callers="threads")


async def queued_at_once(url: str, total: int) -> None:
    """All are enqueued, by many clients, while the queue's worker takes them, until the last has ended."""
    limit = asyncio.Semaphore(64)

    async def enqueue() -> None:
        async with limit:
            await DBOS.enqueue_workflow_async(QUEUE, noop)

    await asyncio.sleep(TOLD)
    bytes_before, flushes_before = logged(url)
    begun = time.perf_counter()
    await asyncio.gather(*(enqueue() for _ in range(total)))
    enqueued = time.perf_counter() - begun
    # one look at a time for all: thousands who ask for their results would be most of its work
    while left(url, QUEUE):
        await asyncio.sleep(0.01)
    seconds = time.perf_counter() - begun
    await asyncio.sleep(TOLD)
    written, flushes = logged(url)
    say(
        experiment="queue",
        mode="both",
        concurrency=64,
        completed=total,
        failed=0,
        seconds=seconds,
        enqueue_seconds=enqueued,
        per_second=total / seconds,
        bytes_each=(written - bytes_before) / total,
        flushes_each=(flushes - flushes_before) / total,
    )


async def queued_one_by_one(many: int) -> None:
    """One after the other, with nothing else to do: until it begins, and until the result is there."""
    to_start, to_result = [], []
    for _ in range(many):
        begun = time.perf_counter()
        started = await (await DBOS.enqueue_workflow_async(QUEUE, noting)).get_result()
        to_result.append((time.perf_counter() - begun) * 1000)
        to_start.append((started - begun) * 1000)
    for mode, took in [("one at a time, to start", to_start), ("one at a time, to result", to_result)]:
        say(experiment="queue", mode=mode, concurrency=1, completed=many, p50_ms=statistics.median(took))


def payload(rounds: int) -> None:
    seven, one = [], []
    first = seven_steps()[0]
    one_step()
    for _ in range(rounds):
        seven.append(seven_steps())
        one.append(one_step())
    for i in range(7):
        times = [took[i] for took in seven]
        say(experiment="payload", mode="step", size=10**i, completed=rounds, p50_ms=statistics.median(times))
    totals = [sum(took) for took in seven]
    say(experiment="payload", mode="first call", size=1, completed=1, p50_ms=first)
    say(experiment="payload", mode="seven steps", completed=rounds, p50_ms=statistics.median(totals))
    say(experiment="payload", mode="one batched step", completed=rounds, p50_ms=statistics.median(one))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="of the Postgres server; the role must be allowed to create databases")
    parser.add_argument("--clients", default="1,32,256", help="tasks of one event loop; a list sweeps")
    parser.add_argument("--threads", default="32", help="threads with sync workflows; a list sweeps")
    parser.add_argument("--iterations", type=int, default=2_000, help="workflows for each result")
    parser.add_argument("--rounds", type=int, default=20, help="of the payload experiment")
    parser.add_argument("--polling", type=float, default=0.1, help="seconds between looks at the queue (its default: 1)")
    asked = parser.parse_args()
    numbers: Callable[[str], list[int]] = lambda text: [int(part) for part in text.split(",") if part]
    with fresh(asked.url) as url:
        DBOS(config=configured(url, "bench"))
        DBOS.launch()
        DBOS.register_queue(QUEUE, polling_interval_sec=asked.polling)
        say(experiment="about", version=VERSION, polling_seconds=asked.polling, **settings(url))
        try:
            for _ in range(20):
                DBOS.start_workflow(noop_here).get_result()
            # first, while nothing of the others goes on in the process
            payload(asked.rounds)
            for clients in numbers(asked.clients):
                # a lone client is slow, and needs no more to be known
                total = asked.iterations if clients > 1 else max(asked.iterations // 10, 20)
                asyncio.run(by_tasks(clients, total))
            for threads in numbers(asked.threads):
                by_threads(threads, asked.iterations)
            asyncio.run(queued_at_once(url, asked.iterations))
            asyncio.run(queued_one_by_one(20))
        finally:
            DBOS.destroy()


if __name__ == "__main__":
    main()
