"""Programs that end in the middle of an execution, each in its own way; see test_ends.py.

`python ends.py WAY URL` starts an execution and ends; `python ends.py WAY URL finish` prints its output.
"""

import asyncio
import json
import os
import pathlib
import signal
import sys
import threading

from stepfast import AsyncEngine, Engine, sleep, step, workflow

#: Bodies say here that they have begun.
LOG = os.environ["LOG"]


def begun(name: str) -> int:
    """Notes that a body has begun; for which time."""
    with open(LOG, "a") as log:
        log.write(name + "\n")
    return pathlib.Path(LOG).read_text().split().count(name)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@step
async def first(name: str) -> str:
    begun(name)
    return name


@step
async def cut_off(name: str) -> str:
    """The first of all waits for the end of the program."""
    if begun(name) == 1:
        await asyncio.Event().wait()
    return name


async def branch(name: str) -> list[str]:
    return [await first(name + "1"), await cut_off(name + "2")]


@workflow
async def branches() -> list[list[str]]:
    results = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(branch(name)) for name in "ab"]
        results = [task.result() for task in tasks]
    finally:
        # while the program ends it must neither run nor be recorded
        results.append([await first("c")])
    return results


@workflow
async def sleeping() -> str:
    try:
        await sleep(2)
    finally:
        name = await first("c")
    return name


@step
def interrupted(name: str) -> str:
    if begun(name) == 1:
        interrupt()
    return name


@step
def exiting(name: str) -> str:
    if begun(name) == 1:
        sys.exit(7)
    return name


@step
def quiet(name: str) -> str:
    begun(name)
    return name


@workflow
def sync_interrupted() -> list[str]:
    return [quiet("a"), interrupted("b"), quiet("c")]


@workflow
def sync_exiting() -> list[str]:
    return [quiet("a"), exiting("b"), quiet("c")]


@workflow
def sync_sleeping() -> list[str]:
    first = quiet("a")
    sleep(2)
    return [first, quiet("c")]


WORKFLOWS = {
    "forgets": branches,
    "cancels": branches,
    "drops": branches,
    "interrupted": branches,
    "sleeping": sleeping,
    "sync_interrupted": sync_interrupted,
    "sync_exiting": sync_exiting,
    "sync_sleeping": sync_sleeping,
}


async def begin(way: str, url: str) -> None:
    engine = await AsyncEngine(url, suspend_after=60).open()
    await engine.start(WORKFLOWS[way], workflow_id="it")
    if way == "sleeping":
        # asyncio.run cancels it in its sleep
        return
    await _both_in_body()
    if way == "cancels":
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0.05)
        await engine.close()
    if way == "interrupted":
        interrupt()
        await asyncio.Event().wait()
    # all others leave the engine open, and asyncio.run cancels all tasks


def begin_dropped(url: str) -> None:
    """The loop is closed with tasks on it, which are then collected."""
    loop = asyncio.new_event_loop()
    engine = loop.run_until_complete(AsyncEngine(url).open())
    loop.run_until_complete(engine.start(branches, workflow_id="it"))
    loop.run_until_complete(_both_in_body())
    loop.close()


async def _both_in_body() -> None:
    while not pathlib.Path(LOG).exists() or pathlib.Path(LOG).read_text().count("2") < 2:
        await asyncio.sleep(0.001)


def begin_sync(way: str, url: str) -> None:
    with Engine(url, suspend_after=60) as engine:
        if way == "sync_sleeping":
            threading.Timer(0.3, interrupt).start()
        engine.run(WORKFLOWS[way], workflow_id="it")


async def finish(way: str, url: str) -> None:
    async with AsyncEngine(url) as engine:
        handle = await engine.start(WORKFLOWS[way], workflow_id="it")
        print(json.dumps(await handle))


if __name__ == "__main__":
    way, url, is_finishing = sys.argv[1], sys.argv[2], len(sys.argv) > 3
    if is_finishing:
        asyncio.run(finish(way, url))
    elif way.startswith("sync"):
        begin_sync(way, url)
    elif way == "drops":
        begin_dropped(url)
    else:
        asyncio.run(begin(way, url))
