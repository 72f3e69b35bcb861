"""Time limits of a step, and of a part of a workflow: python timeouts.py"""

import asyncio

import stepfast
from stepfast import AsyncEngine, sleep, step, workflow

attempts = 0


@step(timeout=0.05, retries=1, backoff=0.01)
async def ask() -> str:
    global attempts
    attempts += 1
    if attempts == 1:
        await asyncio.Event().wait()  # the first request gets no answer
    return f"answered at attempt {attempts}"


@workflow
async def confirm(hours: float) -> str:
    print(await ask())
    try:
        # a durable timer: unlike that of asyncio.timeout, it continues after a crash
        async with stepfast.timeout(hours * 3600):
            await sleep(days=1)  # or a child that waits for a person
    except TimeoutError:
        return "no confirmation in time"
    return "confirmed"


async def main() -> None:
    async with AsyncEngine("sqlite://timeouts.db") as engine:
        print(await engine.run(confirm, 0.0001))


asyncio.run(main())
