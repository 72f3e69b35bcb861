"""Workflows that call workflows: python children.py"""

from stepfast import Engine, step, workflow


@step
def pack(item: str) -> str:
    return f"[{item}]"


@workflow
def parcel(items: list[str]) -> str:
    return "".join(pack(item) for item in items)


@workflow
def shipment(orders: list[list[str]]) -> list[str]:
    # each is an execution of its own, with its own id and record
    return [parcel(items) for items in orders]


with Engine("sqlite://children.db") as engine:
    print(engine.run(shipment, [["tea", "cup"], ["bread"]]))
