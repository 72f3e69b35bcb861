"""A program that kills itself beside a race; see test_race_kills.py.

Usage: `python race_program.py URL MODE FIRST POINT`. MODE is `sync` or `async`, FIRST the topic of the first
message. At POINT the program kills itself: `unwinding` while the losers unwind, `after` in a step after the
race, or `never`. Without a kill the program prints the output.

With the MODE `inline` the program sends no message, and runs the code in its main thread. POINT is then a
named pipe, into which a branch of the race writes the process id.
"""

import asyncio
import os
import signal
import sys
from typing import Any

from stepfast import AsyncEngine, Engine, race, receive, set_event, sleep, step, workflow

URL, MODE, FIRST, POINT = sys.argv[1:]
#: The topic of the branch that loses.
OTHER = "b" if FIRST == "a" else "a"


def kill_at(point: str) -> None:
    if point == POINT:
        os.kill(os.getpid(), signal.SIGKILL)


@step
def kill_after_race() -> None:
    kill_at("after")


@workflow
def races_before_kill() -> list[Any]:
    def wait(topic: str) -> Any:
        if (MODE, topic) == ("inline", "c"):
            with open(POINT, "w") as pipe:
                pipe.write(f"{os.getpid()}\n")
        try:
            return receive(topic)
        except BaseException:
            kill_at("unwinding")
            raise

    def wait_in_race() -> Any:
        return race(lambda: wait("a"), lambda: sleep(3600))

    winner = race(wait_in_race, lambda: wait("b"), lambda: wait("c"))
    set_event("winner", winner[0])
    kill_after_race()
    return [winner, receive("c"), receive("b" if winner[0] == 0 else "a")]


@workflow
async def races_before_kill_async() -> list[Any]:
    async def wait(topic: str) -> Any:
        try:
            return await receive(topic)
        except BaseException:
            kill_at("unwinding")
            raise

    winner = await race(race(wait("a"), sleep(3600)), wait("b"), wait("c"))
    await set_event("winner", winner[0])
    await kill_after_race.in_thread()
    return [winner, await receive("c"), await receive("b" if winner[0] == 0 else "a")]


def run_sync() -> None:
    with Engine(URL) as engine:
        handle = engine.start(races_before_kill.options(workflow_id="race"))
        handle.send("first", topic=FIRST, message_id="1")
        if POINT == "never":
            handle.get_event("winner")
            for topic in ("c", OTHER):
                handle.send("late", topic=topic, message_id=topic)
        print(handle.result())


async def run_async() -> None:
    async with AsyncEngine(URL) as engine:
        handle = await engine.start(races_before_kill_async.options(workflow_id="race"))
        await handle.send("first", topic=FIRST, message_id="1")
        if POINT == "never":
            await handle.get_event("winner")
            for topic in ("c", OTHER):
                await handle.send("late", topic=topic, message_id=topic)
        print(await handle)


if __name__ == "__main__":
    match MODE:
        case "inline":
            with Engine(URL) as engine:
                engine.run(races_before_kill.options(workflow_id="race"))
        case "sync":
            run_sync()
        case _:
            asyncio.run(run_async())
