"""A CSV file as a batch: each line is an item, and wrong lines are reported by number: python load_csv.py"""

import csv
from collections.abc import Iterator
from pathlib import Path

from stepfast import Engine, step, workflow

orders: dict[str, int] = {}


@step(retries=3)
def save(customer: str, amount: int) -> None:
    # a call of some service
    orders[customer] = orders.get(customer, 0) + amount


@workflow
def load_order(customer: str, amount: str) -> None:
    if not amount.isdigit():
        raise ValueError(f"{amount!r} is no amount")
    save(customer, int(amount))


def lines(path: Path) -> Iterator[tuple[str, str]]:
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            yield line["customer"], line["amount"]


file = Path("orders.csv")
file.write_text(
    "customer,amount\n"
    + "".join(f"customer-{n % 100},{'three' if n % 2_000 == 1_999 else 3}\n" for n in range(5_000))
)

with Engine("sqlite://orders.db") as engine:
    batch = engine.submit_batch(load_order, lines(file), batch_id=file.name)
    counts = batch.wait()
    print(f"{counts.completed} of {counts.submitted} orders are saved, {sum(orders.values())} EUR")
    for item in batch.failures():
        # the first line of the file is the header
        print(f"{file}, line {item.index + 2}: {item.exception()}")
