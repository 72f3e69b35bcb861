"""Concurrent steps in sync code, each in a thread: python fan_out.py"""

import stepfast
from stepfast import Engine, step, workflow


@step(retries=3)
def price(item: str) -> int:
    return len(item)


@step
def reserve(item: str) -> str:
    return f"{item} reserved"


def offer(item: str) -> str:
    # a branch, with any number of steps
    return f"{reserve(item)}, {price(item)} EUR"


@workflow
def offers(items: list[str]) -> list[str]:
    cheap, dear = stepfast.gather(lambda: price("tea"), lambda: price("butter"))
    assert cheap < dear
    return stepfast.map(offer, items, concurrency=8)


with Engine("sqlite://fan_out.db") as engine:
    for line in engine.run(offers, ["tea", "bread", "butter"]):
        print(line)
