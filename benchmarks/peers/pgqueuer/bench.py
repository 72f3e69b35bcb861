"""pgqueuer on Postgres: no-op jobs by way of a queue. One line of JSON per result.

One process puts jobs in and runs them, as its users do who have one: each job by a call of its own, from many tasks, on
a pool of connections. How many it takes at a time is given; its default is 10.
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

NAME = "noop"
#: Seconds after which the server knows what idle sessions have done: they tell it every ten.
TOLD = 12


def say(**result: object) -> None:
    """Prints a result as a line of JSON."""
    print(json.dumps({"peer": "pgqueuer", **result}), flush=True)


@asynccontextmanager
async def fresh(server: str) -> AsyncIterator[str]:
    """The URL of a new database on the server, which goes at the end."""
    name = f"stepfast_peer_{uuid.uuid4().hex[:12]}"
    connection = await asyncpg.connect(server.replace("postgres://", "postgresql://"))
    await connection.execute(f"CREATE DATABASE {name}")
    try:
        yield f"{server.partition('?')[0].rpartition('/')[0]}/{name}"
    finally:
        await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await connection.close()


class Watch:
    """What the server has written so far: bytes of log, and how often it was flushed."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def read(self) -> tuple[int, int]:
        row = await self._connection.fetchrow(
            "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint, wal_sync FROM pg_stat_wal"
        )
        return row[0], row[1]


class Ran:
    """How many jobs have begun, and when the last of them did."""

    def __init__(self) -> None:
        self.count = 0
        self.at = 0.0
        self._changed = asyncio.Condition()

    async def one(self) -> None:
        self.count, self.at = self.count + 1, time.perf_counter()
        async with self._changed:
            self._changed.notify_all()

    async def until(self, count: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.count >= count)


async def put(queries: Queries, callers: int, total: int) -> None:
    """Puts so many jobs into the queue, each by a call of its own."""
    numbers = iter(range(total))

    async def caller() -> None:
        for _ in numbers:
            await queries.enqueue(NAME, None)

    await asyncio.gather(*(caller() for _ in range(callers)))


async def over(connection: Any) -> None:
    """Waits until nothing is left in the queue: the ends are durable."""
    while await connection.fetchval("SELECT count(*) FROM pgqueuer WHERE status IN ('queued', 'picked')"):
        await asyncio.sleep(0.01)


async def measure(url: str, callers: int, total: int, batch: int) -> None:
    connection = await asyncpg.connect(url)
    pool = await asyncpg.create_pool(url, min_size=2, max_size=min(callers, 20))
    await Queries(AsyncpgDriver(connection)).install()
    settings = await connection.fetchrow(
        "SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit')"
    )
    version = importlib.metadata.version("pgqueuer")
    say(
        experiment="about",
        version=version,
        batch_size=batch,
        postgres=settings[0],
        fsync=settings[1],
        synchronous_commit=settings[2],
    )
    watch, queries, ran = Watch(await asyncpg.connect(url)), Queries(AsyncpgPoolDriver(pool)), Ran()

    async def measured(mode: str, work: Any) -> None:
        await asyncio.sleep(TOLD)
        (bytes_before, syncs_before), begun = await watch.read(), time.perf_counter()
        await work()
        seconds = time.perf_counter() - begun
        await asyncio.sleep(TOLD)
        written, syncs = await watch.read()
        say(
            experiment="queue",
            mode=mode,
            completed=total,
            concurrency=callers,
            seconds=seconds,
            per_second=total / seconds,
            bytes_each=(written - bytes_before) / total,
            flushes_each=(syncs - syncs_before) / total,
        )

    await measured("enqueue", lambda: put(queries, callers, total))

    worker = PgQueuer(AsyncpgPoolDriver(pool))

    @worker.entrypoint(NAME)
    async def noop(job: Any) -> None:
        await ran.one()

    running: list[asyncio.Task[None]] = []

    async def drain() -> None:
        running.append(asyncio.create_task(worker.run(batch_size=batch, dequeue_timeout=timedelta(seconds=1))))
        await ran.until(total)
        await over(connection)

    async def both() -> None:
        await put(queries, callers, total)
        await ran.until(2 * total)
        await over(connection)

    await measured("drain", drain)
    await measured("both", both)
    waits = []
    for n in range(100):
        begun = time.perf_counter()
        await queries.enqueue(NAME, None)
        await ran.until(2 * total + n + 1)
        waits.append((ran.at - begun) * 1000)
        await over(connection)
    say(experiment="queue", mode="one at a time, to start", completed=len(waits), p50_ms=statistics.median(waits))
    worker.shutdown.set()
    await asyncio.gather(*running)
    await pool.close()
    await connection.close()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="of the Postgres server; the role must be allowed to create databases")
    parser.add_argument("--callers", type=int, default=64, help="tasks that put jobs in")
    parser.add_argument("--iterations", type=int, default=10_000, help="jobs for each result")
    parser.add_argument("--batch-size", type=int, default=100, help="jobs that it takes at a time")
    asked = parser.parse_args()
    async with fresh(asked.url) as url:
        await measure(url, asked.callers, asked.iterations, asked.batch_size)


if __name__ == "__main__":
    asyncio.run(main())
