"""Workflows whose code changes between a crash and the resumption; see test_changed_code.py.

Usage: `python changed_code_program.py sync|async URL`. The program starts or continues an execution. The
environment variable CODE selects the variant of the code.
"""

import asyncio
import os
import signal
import sys

from stepfast import AsyncEngine, Engine, sleep, step, workflow

CODE = os.environ.get("CODE", "first")


@step
def charge(n: int) -> str:
    return f"charged {n}"


@step
def refund(n: int) -> str:
    return f"refunded {n}"


@step(name="charge_card")
def charge_with_other_name(n: int) -> str:
    return f"charged {n}"


@step
def label(n: int) -> str:
    return f"label {n}"


@step
def ship(n: int) -> str:
    if os.environ.get("KILL"):
        os.kill(os.getpid(), signal.SIGKILL)
    return f"shipped {n}"


@workflow
def sync_order(n: int) -> list[str]:
    results = []
    match CODE:
        case "replaced":
            results = [refund(n), label(n)]
        case "renamed":
            results = [charge_with_other_name(n), label(n)]
        case "swapped":
            results = [label(n), charge(n)]
        case "removed":
            results = [label(n)]
        case "added before":
            results = [refund(n), charge(n), label(n)]
        case "other arguments":
            results = [charge(n + 1), label(n)]
        case "other kind":
            sleep(0.001)
            results = [label(n)]
        case "ends early":
            return [charge(n)]
        case _:
            results = [charge(n), label(n)]
    return [*results, ship(n)]


async def charge_in_branch(n: int) -> str:
    return await charge.in_thread(n)


async def label_in_branch(n: int) -> str:
    return await label.in_thread(n)


@workflow
async def async_order(n: int) -> list[str]:
    results = []
    match CODE:
        case "replaced":
            results = [await refund.in_thread(n), await label.in_thread(n)]
        case "renamed":
            results = [await charge_with_other_name.in_thread(n), await label.in_thread(n)]
        case "swapped":
            results = [await label.in_thread(n), await charge.in_thread(n)]
        case "removed":
            results = [await label.in_thread(n)]
        case "added before":
            results = [await refund.in_thread(n), await charge.in_thread(n), await label.in_thread(n)]
        case "other arguments":
            results = [await charge.in_thread(n + 1), await label.in_thread(n)]
        case "other kind":
            await sleep(0.001)
            results = [await label.in_thread(n)]
        case "ends early":
            return [await charge.in_thread(n)]
        case "gathered":
            results = await asyncio.gather(charge_in_branch(n), label_in_branch(n))
        case "in a group":
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(charge_in_branch(n)), group.create_task(label_in_branch(n))]
            results = [task.result() for task in tasks]
        case "in a task":
            results = [await asyncio.create_task(charge_in_branch(n)), await label.in_thread(n)]
        case "not awaited":
            call = charge.in_thread(n)
            try:
                results = [await label.in_thread(n)]
            finally:
                call.close()
        case _:
            results = [await charge.in_thread(n), await label.in_thread(n)]
    return [*results, await ship.in_thread(n)]


async def main(url: str) -> None:
    async with AsyncEngine(url) as engine:
        print(await (await engine.start(async_order.options(workflow_id="order-7"), 7)))


if __name__ == "__main__":
    if sys.argv[1] == "async":
        asyncio.run(main(sys.argv[2]))
    else:
        with Engine(sys.argv[2]) as engine:
            print(engine.start(sync_order.options(workflow_id="order-7"), 7).result())
