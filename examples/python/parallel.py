"""Concurrent steps, with the functions of asyncio: python parallel.py"""

import asyncio

from stepfast import AsyncEngine, step, workflow


@step(retries=3)
async def price(item: str) -> int:
    await asyncio.sleep(0.01)
    return len(item)


@workflow
async def total(items: list[str]) -> int:
    prices = await asyncio.gather(*[price(item) for item in items])
    return sum(prices)


async def main() -> None:
    async with AsyncEngine("sqlite://parallel.db") as engine:
        print(await engine.run(total, ["tea", "bread", "butter"]))


asyncio.run(main())
