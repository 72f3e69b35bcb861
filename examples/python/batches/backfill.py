"""A backfill of 200,000 rows as a batch, with progress and a retry of failed rows: python backfill.py"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing

from stepfast import Engine, workflow

ROWS = 200_000
# the service that a few rows need
service = {"is_reachable": False}


@workflow
def cents(row: int, price: str) -> int:
    if row % 50_000 == 0 and not service["is_reachable"]:
        raise ConnectionError(f"no currency for row {row}")
    return round(float(price) * 100)


def prices(shop: sqlite3.Connection) -> Iterator[tuple[int, str]]:
    # the engine takes the rows as it writes them: no list holds them all
    yield from shop.execute("SELECT id, price FROM products ORDER BY id")


with closing(sqlite3.connect("shop.db")) as shop, Engine("sqlite://backfill.db") as engine:
    shop.execute("CREATE TABLE products (id INTEGER PRIMARY KEY, price TEXT, cents INTEGER)")
    rows = ((n, f"{n % 1_000 / 100:.2f}") for n in range(ROWS))
    shop.executemany("INSERT INTO products (id, price) VALUES (?, ?)", rows)
    shop.commit()

    # a second run of this program with the same id would continue the batch
    batch = engine.submit_batch(cents, prices(shop), batch_id="cents")
    counts = batch.wait(progress=True)
    print(f"{counts.completed} completed, {counts.failed} failed")
    for item in batch.failures():
        print(item.exception())

    service["is_reachable"] = True
    print(batch.retry_failed(), "retried")
    print(batch.wait(progress=True).completed, "completed")

    updates = ((item.result(), item.index) for item in batch.results())
    shop.executemany("UPDATE products SET cents = ? WHERE id = ?", updates)
    shop.commit()
    print(shop.execute("SELECT sum(cents) FROM products").fetchone()[0], "cents")
