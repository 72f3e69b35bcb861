"""A program that comes to its end in all the ways that programs do; see test_program_ends.py.

Usage: `python end_program.py ENDING URL LOG`. The program runs executions. While these are in the body of
their third step, the program ends as ENDING says. With `finish` as ENDING, the program waits until all
executions have ended, and prints their outputs.
"""

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable

from stepfast import AsyncEngine, Engine, Handle, step, workflow

ENDING, URL, LOG = sys.argv[1:4] if __name__ == "__main__" else ("", "", "")
WHO = "second" if ENDING == "finish" else "first"
IDS = ["one", "two", "three"]
#: Steps of every execution, and the one in whose body the program ends.
STEPS, LAST = 5, 2


def note(text: str) -> None:
    """Adds a line to the log, whatever becomes of this process."""
    log = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, f"{WHO} {text}\n".encode())
    os.close(log)


class Ending:
    """What the program does, and what its executions do meanwhile."""

    #: In the body of the last step; between that and the one before.
    in_body: Callable[[], object] = staticmethod(lambda: None)
    between: Callable[[], object] = staticmethod(lambda: None)
    is_released = threading.Event()
    #: Bodies that have come to the last step.
    arrived = threading.Semaphore(0)


def arrive() -> None:
    Ending.arrived.release()
    # at once: they come from several threads
    os.write(1, b"in the body\n")


def wait_for_release() -> None:
    arrive()
    Ending.is_released.wait()


def wait_for_ever() -> None:
    arrive()
    # Python does not see a signal that comes right before it falls asleep until it wakes up
    while True:
        time.sleep(0.05)


def all_arrived() -> None:
    for _ in IDS:
        Ending.arrived.acquire()


def exits() -> None:
    arrive()
    sys.exit(3)


def interrupts() -> None:
    arrive()
    raise KeyboardInterrupt


@step
def number(workflow_id: str, i: int) -> str:
    note(f"{workflow_id} {i} begins")
    if i == LAST and WHO == "first":
        Ending.in_body()
    return f"{WHO} {i}"


@workflow
def numbers(workflow_id: str) -> list[str]:
    try:
        outcomes = []
        for i in range(STEPS):
            outcomes.append(number(workflow_id, i))
            if i == LAST - 1 and WHO == "first":
                Ending.between()
        return outcomes
    finally:
        # a durable call while the code unwinds: it must not be made
        number(workflow_id, 100)


@step
async def async_number(workflow_id: str, i: int) -> str:
    note(f"{workflow_id} {i} begins")
    if i == LAST and WHO == "first":
        Ending.in_body()
        await asyncio.Event().wait()
    return f"{WHO} {i}"


@workflow
async def async_numbers(workflow_id: str) -> list[str]:
    try:
        outcomes = []
        for i in range(STEPS):
            outcomes.append(await async_number(workflow_id, i))
            if i == LAST - 1 and WHO == "first":
                Ending.between()
        return outcomes
    finally:
        await async_number(workflow_id, 100)


@workflow
async def async_branches(workflow_id: str) -> list[str]:
    """The same in a task of its own, beside one that waits for something else."""
    other = asyncio.create_task(asyncio.Event().wait())
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(async_numbers.function(workflow_id))
        return task.result()
    finally:
        other.cancel()


def start(engine: Engine) -> list[Handle[list[str]]]:
    return [engine.start(numbers.options(workflow_id=id), id) for id in IDS]


# ---- the endings: sync -------------------------------------------------------------------------------------


def run_is_interrupted() -> None:
    Ending.in_body = wait_for_ever
    with Engine(URL) as engine:
        engine.run(numbers.options(workflow_id="one"), "one")


def wait_is_interrupted() -> None:
    Ending.in_body = wait_for_release
    with Engine(URL) as engine:
        handles = start(engine)
        try:
            handles[0].result()
        finally:
            Ending.is_released.set()


def run_is_terminated() -> None:
    run_is_interrupted()


def run_in_another_thread_is_interrupted() -> None:
    Ending.in_body = wait_for_ever
    with Engine(URL) as engine:
        caller = threading.Thread(
            target=lambda: engine.run(numbers.options(workflow_id="one"), "one"), daemon=True, name="caller"
        )
        caller.start()
        # not for ever, as in a body that waits so
        while caller.is_alive():
            caller.join(0.05)


def main_exits_inside() -> None:
    Ending.in_body = wait_for_release
    with Engine(URL) as engine:
        start(engine)
        all_arrived()
        Ending.is_released.set()
        sys.exit(3)


def main_raises_inside() -> None:
    Ending.in_body = wait_for_release
    with Engine(URL) as engine:
        start(engine)
        all_arrived()
        Ending.is_released.set()
        raise LookupError


def main_exits_without_close() -> None:
    global engine
    Ending.in_body = wait_for_ever
    engine = Engine(URL)
    start(engine)
    all_arrived()
    sys.exit(3)


def main_ends_without_close() -> None:
    global engine
    Ending.in_body = wait_for_ever
    engine = Engine(URL)
    start(engine)
    all_arrived()


def main_closes_while_bodies_block() -> None:
    Ending.in_body = wait_for_ever
    engine = Engine(URL)
    start(engine)
    all_arrived()
    engine.close(0.1)


def body_exits() -> None:
    Ending.in_body = exits
    with Engine(URL) as engine:
        engine.run(numbers.options(workflow_id="one"), "one")


def body_interrupts() -> None:
    Ending.in_body = interrupts
    with Engine(URL) as engine:
        engine.run(numbers.options(workflow_id="one"), "one")


def code_exits() -> None:
    Ending.between = exits
    with Engine(URL) as engine:
        engine.run(numbers.options(workflow_id="one"), "one")


def bodies_exit_in_threads() -> None:
    Ending.in_body = exits
    with Engine(URL) as engine:
        start(engine)
        all_arrived()


# ---- the endings: async ------------------------------------------------------------------------------------


async def async_start(engine: AsyncEngine) -> None:
    arrived = asyncio.Semaphore(0)
    before = Ending.in_body

    def in_body() -> None:
        arrived.release()
        before()

    Ending.in_body = in_body
    for id in IDS:
        await engine.start((async_branches if id == "two" else async_numbers).options(workflow_id=id), id)
    for _ in IDS:
        await arrived.acquire()


async def in_with(what: Callable[[AsyncEngine], object]) -> None:
    async with AsyncEngine(URL) as engine:
        await what(engine)


async def run_inline(engine: AsyncEngine) -> None:
    await engine.run(async_numbers.options(workflow_id="one"), "one")


async def wait_for_one(engine: AsyncEngine) -> None:
    await async_start(engine)
    await (await engine.start(async_numbers.options(workflow_id="one"), "one"))


async def exit_inside(engine: AsyncEngine) -> None:
    await async_start(engine)
    sys.exit(3)


async def raise_inside(engine: AsyncEngine) -> None:
    await async_start(engine)
    raise LookupError


async def not_closed() -> None:
    global async_engine
    async_engine = await AsyncEngine(URL).open()
    await async_start(async_engine)


def async_run_is_interrupted() -> None:
    Ending.in_body = arrive
    asyncio.run(in_with(run_inline))


def async_wait_is_interrupted() -> None:
    Ending.in_body = arrive
    asyncio.run(in_with(wait_for_one))


def async_wait_is_terminated() -> None:
    async_wait_is_interrupted()


def async_main_exits_inside() -> None:
    asyncio.run(in_with(exit_inside))


def async_main_raises_inside() -> None:
    asyncio.run(in_with(raise_inside))


def async_main_ends_without_close() -> None:
    asyncio.run(not_closed())


def loop_is_closed_without_close() -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(not_closed())
    loop.close()


def async_body_exits() -> None:
    Ending.in_body = exits
    asyncio.run(in_with(wait_for_one))


def async_body_exits_in_run() -> None:
    Ending.in_body = exits
    asyncio.run(in_with(run_inline))


def async_code_exits() -> None:
    Ending.between = exits
    asyncio.run(in_with(wait_for_one))


# ---- the next program --------------------------------------------------------------------------------------


def finish() -> None:
    """Whatever was started ends, and is not run again."""

    async def main() -> None:
        is_async = sys.argv[4] == "async"
        outputs = {}
        async with AsyncEngine(URL) as engine:
            for id in sys.argv[5:]:
                code = (async_branches if id == "two" else async_numbers) if is_async else numbers
                outputs[id] = await (await engine.start(code.options(workflow_id=id), id))
        print(json.dumps(outputs))

    asyncio.run(main())


if __name__ == "__main__":
    globals()[ENDING]()
