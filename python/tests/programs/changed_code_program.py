"""Workflows whose code changes between a crash and the resumption; see test_changed_code_program.py.

`python changed_code_program.py sync|async URL` starts one, or goes on with it, with the code that CODE says.
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
def charge_by_another_name(n: int) -> str:
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
    done = []
    match CODE:
        case "replaced":
            done = [refund(n), label(n)]
        case "renamed":
            done = [charge_by_another_name(n), label(n)]
        case "swapped":
            done = [label(n), charge(n)]
        case "removed":
            done = [label(n)]
        case "added before":
            done = [refund(n), charge(n), label(n)]
        case "other arguments":
            done = [charge(n + 1), label(n)]
        case "other kind":
            sleep(0.001)
            done = [label(n)]
        case "ends early":
            return [charge(n)]
        case _:
            done = [charge(n), label(n)]
    return [*done, ship(n)]


async def charging(n: int) -> str:
    return await charge.in_thread(n)


async def labelling(n: int) -> str:
    return await label.in_thread(n)


@workflow
async def async_order(n: int) -> list[str]:
    done = []
    match CODE:
        case "replaced":
            done = [await refund.in_thread(n), await label.in_thread(n)]
        case "renamed":
            done = [await charge_by_another_name.in_thread(n), await label.in_thread(n)]
        case "swapped":
            done = [await label.in_thread(n), await charge.in_thread(n)]
        case "removed":
            done = [await label.in_thread(n)]
        case "added before":
            done = [await refund.in_thread(n), await charge.in_thread(n), await label.in_thread(n)]
        case "other arguments":
            done = [await charge.in_thread(n + 1), await label.in_thread(n)]
        case "other kind":
            await sleep(0.001)
            done = [await label.in_thread(n)]
        case "ends early":
            return [await charge.in_thread(n)]
        case "gathered":
            done = await asyncio.gather(charging(n), labelling(n))
        case "in a group":
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(charging(n)), group.create_task(labelling(n))]
            done = [task.result() for task in tasks]
        case "in a task":
            done = [await asyncio.create_task(charging(n)), await label.in_thread(n)]
        case "not awaited":
            call = charge.in_thread(n)
            try:
                done = [await label.in_thread(n)]
            finally:
                call.close()
        case _:
            done = [await charge.in_thread(n), await label.in_thread(n)]
    return [*done, await ship.in_thread(n)]


async def main(url: str) -> None:
    async with AsyncEngine(url) as engine:
        print(await (await engine.start(async_order.options(workflow_id="order-7"), 7)))


if __name__ == "__main__":
    if sys.argv[1] == "async":
        asyncio.run(main(sys.argv[2]))
    else:
        with Engine(sys.argv[2]) as engine:
            print(engine.start(sync_order.options(workflow_id="order-7"), 7).result())
