"""A program that ends in every way in which programs end; see test_program_ends.py.

Usage: `python end_program.py ENDING URL LOG`. The program runs executions. While these are in the body of
their third step, the program ends in the way that ENDING names. With `finish` as ENDING, the program waits
until all executions have ended, and prints their outputs.
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
PROGRAM_NAME = "second" if ENDING == "finish" else "first"
WORKFLOW_IDS = ["one", "two", "three"]
#: The number of steps of each execution, and the index of the step in whose body the program ends.
STEP_COUNT, ENDING_STEP = 5, 2


def append_to_log(text: str) -> None:
    """Appends a line to the log, which outlives this process."""
    log = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, f"{PROGRAM_NAME} {text}\n".encode())
    os.close(log)


class Ending:
    """Actions of the executions while the program ends, and signals between both."""

    #: The actions in the body of the ending step, and in workflow code before that step.
    in_body: Callable[[], object] = staticmethod(lambda: None)
    before_step: Callable[[], object] = staticmethod(lambda: None)
    is_released = threading.Event()
    #: The number of bodies that have reached the ending step.
    arrived = threading.Semaphore(0)


def report_arrival() -> None:
    Ending.arrived.release()
    # in one write: several threads write
    os.write(1, b"in the body\n")


def wait_for_release() -> None:
    report_arrival()
    Ending.is_released.wait()


def wait_for_ever() -> None:
    report_arrival()
    # each sleep is short: Python handles a signal right before a sleep only after the sleep
    while True:
        time.sleep(0.05)


def wait_for_arrivals() -> None:
    for _ in WORKFLOW_IDS:
        Ending.arrived.acquire()


def exit_program() -> None:
    report_arrival()
    sys.exit(3)


def raise_interrupt() -> None:
    report_arrival()
    raise KeyboardInterrupt


@step
def log_number(workflow_id: str, i: int) -> str:
    append_to_log(f"{workflow_id} {i} begins")
    if i == ENDING_STEP and PROGRAM_NAME == "first":
        Ending.in_body()
    return f"{PROGRAM_NAME} {i}"


@workflow
def log_numbers(workflow_id: str) -> list[str]:
    try:
        outcomes = []
        for i in range(STEP_COUNT):
            outcomes.append(log_number(workflow_id, i))
            if i == ENDING_STEP - 1 and PROGRAM_NAME == "first":
                Ending.before_step()
        return outcomes
    finally:
        # a durable call of unwinding code must not begin
        log_number(workflow_id, 100)


@step
async def log_number_async(workflow_id: str, i: int) -> str:
    append_to_log(f"{workflow_id} {i} begins")
    if i == ENDING_STEP and PROGRAM_NAME == "first":
        Ending.in_body()
        await asyncio.Event().wait()
    return f"{PROGRAM_NAME} {i}"


@workflow
async def log_numbers_async(workflow_id: str) -> list[str]:
    try:
        outcomes = []
        for i in range(STEP_COUNT):
            outcomes.append(await log_number_async(workflow_id, i))
            if i == ENDING_STEP - 1 and PROGRAM_NAME == "first":
                Ending.before_step()
        return outcomes
    finally:
        await log_number_async(workflow_id, 100)


@workflow
async def log_numbers_in_branch(workflow_id: str) -> list[str]:
    """Logs the same numbers in a task of its own, beside a task that blocks."""
    other = asyncio.create_task(asyncio.Event().wait())
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(log_numbers_async.function(workflow_id))
        return task.result()
    finally:
        other.cancel()


def start_all(engine: Engine) -> list[Handle[list[str]]]:
    return [engine.start(log_numbers.options(workflow_id=id), id) for id in WORKFLOW_IDS]


# ---- the endings: sync -------------------------------------------------------------------------------------


def run_is_interrupted() -> None:
    Ending.in_body = wait_for_ever
    with Engine(URL) as engine:
        engine.run(log_numbers.options(workflow_id="one"), "one")


def wait_is_interrupted() -> None:
    Ending.in_body = wait_for_release
    with Engine(URL) as engine:
        handles = start_all(engine)
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
            target=lambda: engine.run(log_numbers.options(workflow_id="one"), "one"),
            daemon=True,
            name="caller",
        )
        caller.start()
        # with a timeout, so that Python can handle the signal
        while caller.is_alive():
            caller.join(0.05)


def main_exits_inside() -> None:
    Ending.in_body = wait_for_release
    with Engine(URL) as engine:
        start_all(engine)
        wait_for_arrivals()
        Ending.is_released.set()
        sys.exit(3)


def main_raises_inside() -> None:
    Ending.in_body = wait_for_release
    with Engine(URL) as engine:
        start_all(engine)
        wait_for_arrivals()
        Ending.is_released.set()
        raise LookupError


def main_exits_without_close() -> None:
    global engine
    Ending.in_body = wait_for_ever
    engine = Engine(URL)
    start_all(engine)
    wait_for_arrivals()
    sys.exit(3)


def main_ends_without_close() -> None:
    global engine
    Ending.in_body = wait_for_ever
    engine = Engine(URL)
    start_all(engine)
    wait_for_arrivals()


def main_closes_while_bodies_block() -> None:
    Ending.in_body = wait_for_ever
    engine = Engine(URL)
    start_all(engine)
    wait_for_arrivals()
    engine.close(0.1)


def body_exits() -> None:
    Ending.in_body = exit_program
    with Engine(URL) as engine:
        engine.run(log_numbers.options(workflow_id="one"), "one")


def body_interrupts() -> None:
    Ending.in_body = raise_interrupt
    with Engine(URL) as engine:
        engine.run(log_numbers.options(workflow_id="one"), "one")


def code_exits() -> None:
    Ending.before_step = exit_program
    with Engine(URL) as engine:
        engine.run(log_numbers.options(workflow_id="one"), "one")


def bodies_exit_in_threads() -> None:
    Ending.in_body = exit_program
    with Engine(URL) as engine:
        start_all(engine)
        wait_for_arrivals()


# ---- the endings: async ------------------------------------------------------------------------------------


async def start_all_async(engine: AsyncEngine) -> None:
    arrived = asyncio.Semaphore(0)
    before = Ending.in_body

    def in_body() -> None:
        arrived.release()
        before()

    Ending.in_body = in_body
    for id in WORKFLOW_IDS:
        await engine.start(
            (log_numbers_in_branch if id == "two" else log_numbers_async).options(workflow_id=id), id
        )
    for _ in WORKFLOW_IDS:
        await arrived.acquire()


async def run_in_engine(action: Callable[[AsyncEngine], object]) -> None:
    async with AsyncEngine(URL) as engine:
        await action(engine)


async def run_inline(engine: AsyncEngine) -> None:
    await engine.run(log_numbers_async.options(workflow_id="one"), "one")


async def wait_for_one(engine: AsyncEngine) -> None:
    await start_all_async(engine)
    await (await engine.start(log_numbers_async.options(workflow_id="one"), "one"))


async def exit_inside(engine: AsyncEngine) -> None:
    await start_all_async(engine)
    sys.exit(3)


async def raise_inside(engine: AsyncEngine) -> None:
    await start_all_async(engine)
    raise LookupError


async def start_without_close() -> None:
    global async_engine
    async_engine = await AsyncEngine(URL).open()
    await start_all_async(async_engine)


def async_run_is_interrupted() -> None:
    Ending.in_body = report_arrival
    asyncio.run(run_in_engine(run_inline))


def async_wait_is_interrupted() -> None:
    Ending.in_body = report_arrival
    asyncio.run(run_in_engine(wait_for_one))


def async_wait_is_terminated() -> None:
    async_wait_is_interrupted()


def async_main_exits_inside() -> None:
    asyncio.run(run_in_engine(exit_inside))


def async_main_raises_inside() -> None:
    asyncio.run(run_in_engine(raise_inside))


def async_main_ends_without_close() -> None:
    asyncio.run(start_without_close())


def loop_is_closed_without_close() -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(start_without_close())
    loop.close()


def async_body_exits() -> None:
    Ending.in_body = exit_program
    asyncio.run(run_in_engine(wait_for_one))


def async_body_exits_in_run() -> None:
    Ending.in_body = exit_program
    asyncio.run(run_in_engine(run_inline))


def async_code_exits() -> None:
    Ending.before_step = exit_program
    asyncio.run(run_in_engine(wait_for_one))


# ---- the next program --------------------------------------------------------------------------------------


def finish() -> None:
    """Waits until the executions have ended, and prints their outputs."""

    async def main() -> None:
        is_async = sys.argv[4] == "async"
        outputs = {}
        async with AsyncEngine(URL) as engine:
            for id in sys.argv[5:]:
                code = (
                    (log_numbers_in_branch if id == "two" else log_numbers_async) if is_async else log_numbers
                )
                outputs[id] = await (await engine.start(code.options(workflow_id=id), id))
        print(json.dumps(outputs))

    asyncio.run(main())


if __name__ == "__main__":
    globals()[ENDING]()
