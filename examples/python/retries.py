"""A step that fails twice, and is tried again: python retries.py"""

from stepfast import Engine, current, step, workflow


@step(retries=3, backoff=0.01, retry_on=ConnectionError)
def charge(order: str) -> str:
    attempt = current().attempt or 0
    if attempt < 3:
        raise ConnectionError("the bank is unreachable")
    return f"paid {order} at attempt {attempt}"


@workflow
def checkout(order: str) -> str:
    return charge(order)


with Engine("sqlite://retries.db") as engine:
    print(engine.run(checkout, "order-7"))
