"""A graph that extracts sales, transforms them and loads totals: python etl.py"""

import sqlite3
from contextlib import closing

from stepfast import Engine, Graph

etl = Graph("etl")


def amount_of(line: str) -> int | None:
    _, _, amount = line.partition(" ")
    return int(amount) if amount.isdigit() else None


@etl.task(retries=3)
def extract(source: str) -> list[str]:
    # a call of some service
    return source.splitlines()


@etl.task
def totals(extract: list[str]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for line in extract:
        product = line.partition(" ")[0]
        if (amount := amount_of(line)) is not None:
            sums[product] = sums.get(product, 0) + amount
    return sums


@etl.task
def rejected(extract: list[str]) -> list[str]:
    return [line for line in extract if amount_of(line) is None]


@etl.task(retries=3)
def load(totals: dict[str, int]) -> int:
    with closing(sqlite3.connect("sales.db")) as sales, sales:
        sales.execute("CREATE TABLE IF NOT EXISTS totals (product TEXT PRIMARY KEY, amount INTEGER)")
        # a body may run twice: it replaces rows instead of adding them
        sales.executemany("REPLACE INTO totals VALUES (?, ?)", totals.items())
    return len(totals)


@etl.task
def report(load: int, rejected: list[str]) -> str:
    return f"{load} products loaded, rejected: {', '.join(rejected)}"


if __name__ == "__main__":
    print(etl.to_tree())
    with Engine("sqlite://etl.db") as engine:
        print(engine.run(etl, source="tea 3\ncup 4\nbread two\ntea 5"))
    with closing(sqlite3.connect("sales.db")) as sales:
        print(dict(sales.execute("SELECT product, amount FROM totals ORDER BY product")))
