"""Runs workflows whose instructions the parent process counts.

Arguments: URL of the store, `run` or `start`, number of steps, number of rounds. In each round, `CALLERS`
callers run one workflow at the same time. Before the first round, a workflow of each mode fills caches.
"""

import asyncio
import sys

from stepfast import AsyncEngine
from stepfast.bench.workflows import counting

CALLERS = 100


async def call(engine: AsyncEngine, mode: str, n: int, steps: int) -> None:
    if mode == "run":
        result = await engine.run(counting, n, steps)
    else:
        handle = await engine.start(counting, n, steps)
        result = await handle.result()
    assert result == n + steps


async def run_rounds(url: str, mode: str, steps: int, rounds: int) -> None:
    async with AsyncEngine(url) as engine:
        for warm_mode in ("run", "start"):
            await call(engine, warm_mode, 0, 1)
        for _ in range(rounds):
            await asyncio.gather(*(call(engine, mode, n, steps) for n in range(CALLERS)))


if __name__ == "__main__":
    url, mode, steps, rounds = sys.argv[1:]
    asyncio.run(run_rounds(url, mode, int(steps), int(rounds)))
