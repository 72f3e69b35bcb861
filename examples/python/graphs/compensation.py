"""A task that may fail, and a compensation that runs if it has failed: python compensation.py"""

from stepfast import Engine, Graph
from stepfast.rules import all_done, failed, succeeded

order = Graph("order")


@order.task(retries=3)
def reserve(items: list[str]) -> int:
    return len(items)


@order.task
def charge(reserve: int) -> str:
    return f"{3 * reserve} EUR"


@order.task(may_fail=True)
def ship(charge: str, in_stock: bool) -> str:
    if not in_stock:
        raise ValueError("out of stock")
    return "shipped"


@order.task(when=failed(ship) & succeeded(charge))
def refund(charge: str) -> str:
    return f"refunded {charge}"


@order.task(when=all_done())
def report(ship: str | None = None, refund: str | None = None) -> str:
    return ship or refund or "nothing happened"


if __name__ == "__main__":
    print(" -> ".join(order.critical_path))
    with Engine("sqlite://compensation.db") as engine:
        for in_stock in (True, False):
            handle = engine.start(order, items=["tea", "cup"], in_stock=in_stock)
            print(handle.result())
            print(order.to_tree(engine.show(handle.workflow_id)))
