"""`AsyncEngine.work` and the program's own handlers of signals."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from stepfast import AsyncEngine, step, workflow

LOOPS = pytest.mark.parametrize(
    "make_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
Loops = Callable[[], asyncio.AbstractEventLoop]
IN_BODY, GOES = threading.Event(), threading.Event()


@step
def body_in_thread() -> None:
    IN_BODY.set()
    GOES.wait(60)


@workflow
def held_in_body() -> None:
    body_in_thread()


def run(make_loop: Loops, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs it in a program that a signal does not kill."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with asyncio.Runner(loop_factory=make_loop) as runner:
            runner.run(main())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def told(event: asyncio.Event) -> None:
    async with asyncio.timeout(60):
        await event.wait()
    event.clear()


@LOOPS
def test_handlers_of_the_program_are_there_again_after_it(make_loop: Loops, url: str) -> None:
    async def main() -> None:
        loop, heard, used = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, heard.set)
        loop.add_signal_handler(signal.SIGUSR1, used.set)
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        for number in (signal.SIGTERM, signal.SIGINT):
            async with AsyncEngine(url) as engine:
                working = asyncio.create_task(engine.work())
                await asyncio.sleep(0)
                os.kill(os.getpid(), number)
                async with asyncio.timeout(60):
                    await working
            assert {each: signal.getsignal(each) for each in before} == before
        heard.clear()
        for number, event in ((signal.SIGTERM, heard), (signal.SIGUSR1, used)):
            os.kill(os.getpid(), number)
            await told(event)
            loop.remove_signal_handler(number)

    run(make_loop, main)


@LOOPS
@pytest.mark.parametrize("is_draining", [False, True])
def test_nothing_is_left_of_it_when_its_task_is_cancelled(
    make_loop: Loops, url: str, is_draining: bool
) -> None:
    async def main() -> None:
        IN_BODY.clear()
        GOES.clear()
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        async with AsyncEngine(url) as engine:
            handle = await engine.start(held_in_body)
            await asyncio.to_thread(IN_BODY.wait, 60)
            tasks = asyncio.all_tasks()
            working = asyncio.create_task(engine.work())
            await asyncio.sleep(0)
            if is_draining:
                os.kill(os.getpid(), signal.SIGTERM)
                while len(asyncio.all_tasks()) < len(tasks) + 3:
                    await asyncio.sleep(0)
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
            assert asyncio.all_tasks() == tasks
            assert {each: signal.getsignal(each) for each in before} == before
            GOES.set()
            await handle

    run(make_loop, main)
