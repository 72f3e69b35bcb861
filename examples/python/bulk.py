"""Many executions: started, awaited together, counted and listed: python bulk.py"""

from stepfast import Engine, Status, step, workflow


@step
def charge(order: int) -> int:
    if order % 400 == 0:
        raise ValueError(f"order {order} has no card")
    return order


@workflow
def checkout(order: int) -> int:
    return charge(order)


with Engine("sqlite://bulk.db") as engine:
    handles = [engine.start(checkout.options(workflow_id=f"order-{n}"), n) for n in range(1, 1001)]
    results = engine.results(handles, return_exceptions=True)
    print(sum(result for result in results if isinstance(result, int)))

    print(engine.count(status=Status.COMPLETED), "completed")
    for execution in engine.list(status=Status.FAILED):
        print(execution.workflow_id, "failed:", engine.show(execution.workflow_id).error)
