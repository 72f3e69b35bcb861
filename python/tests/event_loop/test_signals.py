"""Signal handlers of a program during and after `AsyncEngine.work`."""

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

LOOP_FACTORIES = pytest.mark.parametrize(
    "make_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
LoopFactory = Callable[[], asyncio.AbstractEventLoop]
BODY_HAS_BEGUN, BODY_MAY_END = threading.Event(), threading.Event()


@step
def waits_in_thread() -> None:
    BODY_HAS_BEGUN.set()
    BODY_MAY_END.wait(60)


@workflow
def calls_waiting_step() -> None:
    waits_in_thread()


def run(make_loop: LoopFactory, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs `main` in a program that signals do not kill."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with asyncio.Runner(loop_factory=make_loop) as runner:
            runner.run(main())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def wait_and_clear(event: asyncio.Event) -> None:
    async with asyncio.timeout(60):
        await event.wait()
    event.clear()


@LOOP_FACTORIES
def test_work_restores_signal_handlers_of_the_program(make_loop: LoopFactory, url: str) -> None:
    async def main() -> None:
        loop, sigterm_received, sigusr1_received = (
            asyncio.get_running_loop(),
            asyncio.Event(),
            asyncio.Event(),
        )
        loop.add_signal_handler(signal.SIGTERM, sigterm_received.set)
        loop.add_signal_handler(signal.SIGUSR1, sigusr1_received.set)
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        for number in (signal.SIGTERM, signal.SIGINT):
            async with AsyncEngine(url) as engine:
                work = asyncio.create_task(engine.work())
                await asyncio.sleep(0)
                os.kill(os.getpid(), number)
                async with asyncio.timeout(60):
                    await work
            assert {each: signal.getsignal(each) for each in before} == before
        sigterm_received.clear()
        for number, event in ((signal.SIGTERM, sigterm_received), (signal.SIGUSR1, sigusr1_received)):
            os.kill(os.getpid(), number)
            await wait_and_clear(event)
            loop.remove_signal_handler(number)

    run(make_loop, main)


@LOOP_FACTORIES
@pytest.mark.parametrize("is_draining", [False, True])
def test_cancelled_work_leaves_no_tasks_or_handlers(
    make_loop: LoopFactory, url: str, is_draining: bool
) -> None:
    async def main() -> None:
        BODY_HAS_BEGUN.clear()
        BODY_MAY_END.clear()
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        async with AsyncEngine(url) as engine:
            handle = await engine.start(calls_waiting_step)
            await asyncio.to_thread(BODY_HAS_BEGUN.wait, 60)
            tasks = asyncio.all_tasks()
            work = asyncio.create_task(engine.work())
            await asyncio.sleep(0)
            if is_draining:
                os.kill(os.getpid(), signal.SIGTERM)
                while len(asyncio.all_tasks()) < len(tasks) + 3:
                    await asyncio.sleep(0)
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            assert asyncio.all_tasks() == tasks
            assert {each: signal.getsignal(each) for each in before} == before
            BODY_MAY_END.set()
            await handle

    run(make_loop, main)
