"""Measures pgqueuer on Postgres: no-op jobs through a queue.

One process enqueues the jobs and runs them, as users with a single process do. Many tasks enqueue jobs on a pool of
connections, each job by a call of its own. The program prints one line of JSON per result.
"""

import argparse
import asyncio
import importlib.metadata
import json
import statistics
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.queries import Queries

#: The name under which pgqueuer finds the function of the jobs.
ENTRYPOINT = "noop"
#: The number of jobs that a single caller enqueues one after the other, without other load.
ONE_BY_ONE_JOBS = 100
#: The pause before the server's counters are read. Idle sessions report their counts to the server every ten seconds.
COUNTER_DELAY_SECONDS = 12


def print_result(**result: object) -> None:
    """Prints a result as a line of JSON."""
    print(json.dumps({"peer": "pgqueuer", **result}), flush=True)


@asynccontextmanager
async def create_database(server: str) -> AsyncIterator[str]:
    """Creates a database on the server, yields its URL, and drops it at the end of the block."""
    name = f"stepfast_peer_{uuid.uuid4().hex[:12]}"
    connection = await asyncpg.connect(server.replace("postgres://", "postgresql://"))
    await connection.execute(f"CREATE DATABASE {name}")
    try:
        yield f"{server.partition('?')[0].rpartition('/')[0]}/{name}"
    finally:
        await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await connection.close()


class LogCounters:
    """The server's counters of its log."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def read(self) -> tuple[int, int]:
        """Returns the number of bytes that the server has written to its log, and the number of flushes of the log."""
        row = await self._connection.fetchrow(
            "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint, wal_sync FROM pg_stat_wal"
        )
        return row[0], row[1]


class RunCounter:
    """A counter of jobs that have begun, with the time of the last beginning."""

    def __init__(self) -> None:
        self.count = 0
        self.last_begin = 0.0
        self._changed = asyncio.Condition()

    async def increment(self) -> None:
        """Counts one more job."""
        self.count, self.last_begin = self.count + 1, time.perf_counter()
        async with self._changed:
            self._changed.notify_all()

    async def wait_for(self, count: int) -> None:
        """Waits until `count` jobs have begun."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.count >= count)


async def enqueue(queries: Queries, callers: int, total: int) -> None:
    """Enqueues `total` jobs from `callers` concurrent tasks, each job by a call of its own."""
    numbers = iter(range(total))

    async def run_caller() -> None:
        for _ in numbers:
            await queries.enqueue(ENTRYPOINT, None)

    await asyncio.gather(*(run_caller() for _ in range(callers)))


async def wait_for_ends(connection: Any) -> None:
    """Waits until the queue is empty. The ends of all jobs are then durable."""
    while await connection.fetchval("SELECT count(*) FROM pgqueuer WHERE status IN ('queued', 'picked')"):
        await asyncio.sleep(0.01)


async def measure(url: str, callers: int, total: int, batch_size: int) -> None:
    """Enqueues jobs and runs them: first one after the other, then both at the same time, then one job at a time.

    Args:
        url: The URL of an empty database.
        callers: The number of tasks that enqueue jobs.
        total: The number of jobs for each result.
        batch_size: The number of jobs that the worker takes at a time.
    """
    connection = await asyncpg.connect(url)
    pool = await asyncpg.create_pool(url, min_size=2, max_size=min(callers, 20))
    await Queries(AsyncpgDriver(connection)).install()
    settings = await connection.fetchrow(
        "SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit')"
    )
    version = importlib.metadata.version("pgqueuer")
    print_result(
        experiment="about",
        version=version,
        batch_size=batch_size,
        postgres=settings[0],
        fsync=settings[1],
        synchronous_commit=settings[2],
    )
    log_counters, queries = LogCounters(await asyncpg.connect(url)), Queries(AsyncpgPoolDriver(pool))
    run_counter = RunCounter()

    async def measure_mode(mode: str, work: Any) -> None:
        await asyncio.sleep(COUNTER_DELAY_SECONDS)
        (bytes_before, flushes_before), begun = await log_counters.read(), time.perf_counter()
        await work()
        seconds = time.perf_counter() - begun
        await asyncio.sleep(COUNTER_DELAY_SECONDS)
        bytes_after, flushes_after = await log_counters.read()
        print_result(
            experiment="queue",
            mode=mode,
            completed=total,
            concurrency=callers,
            seconds=seconds,
            per_second=total / seconds,
            bytes_each=(bytes_after - bytes_before) / total,
            flushes_each=(flushes_after - flushes_before) / total,
        )

    await measure_mode("enqueue", lambda: enqueue(queries, callers, total))

    worker = PgQueuer(AsyncpgPoolDriver(pool))

    @worker.entrypoint(ENTRYPOINT)
    async def noop(job: Any) -> None:
        await run_counter.increment()

    worker_tasks: list[asyncio.Task[None]] = []

    async def drain() -> None:
        worker_run = worker.run(batch_size=batch_size, dequeue_timeout=timedelta(seconds=1))
        worker_tasks.append(asyncio.create_task(worker_run))
        await run_counter.wait_for(total)
        await wait_for_ends(connection)

    async def enqueue_and_drain() -> None:
        await enqueue(queries, callers, total)
        await run_counter.wait_for(2 * total)
        await wait_for_ends(connection)

    await measure_mode("drain", drain)
    await measure_mode("both", enqueue_and_drain)
    start_times = []
    for n in range(ONE_BY_ONE_JOBS):
        begun = time.perf_counter()
        await queries.enqueue(ENTRYPOINT, None)
        await run_counter.wait_for(2 * total + n + 1)
        start_times.append((run_counter.last_begin - begun) * 1000)
        await wait_for_ends(connection)
    p50 = statistics.median(start_times)
    print_result(experiment="queue", mode="one at a time, to start", completed=len(start_times), p50_ms=p50)
    worker.shutdown.set()
    await asyncio.gather(*worker_tasks)
    await pool.close()
    await connection.close()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="URL of the Postgres server; its role must be allowed to create databases")
    parser.add_argument("--callers", type=int, default=64, help="number of tasks that enqueue jobs")
    parser.add_argument("--iterations", type=int, default=10_000, help="number of jobs for each result")
    parser.add_argument(
        "--batch-size", type=int, default=100, help="number of jobs taken at a time (default of pgqueuer: 10)"
    )
    options = parser.parse_args()
    async with create_database(options.url) as url:
        await measure(url, options.callers, options.iterations, options.batch_size)


if __name__ == "__main__":
    asyncio.run(main())
