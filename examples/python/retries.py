"""A step that fails twice, and is tried again: python retries.py"""

from stepfast import Engine, step, workflow

attempts = 0


@step(retries=3, backoff=0.01, retry_if=lambda error: isinstance(error, ConnectionError))
def charge(order: str) -> str:
    global attempts
    attempts += 1
    if attempts < 3:
        raise ConnectionError("the bank does not answer")
    return f"paid {order} at attempt {attempts}"


@workflow
def checkout(order: str) -> str:
    return charge(order)


with Engine("sqlite://retries.db") as engine:
    print(engine.run(checkout, "order-7"))
