"""Cancels of executions whose thread may already begin a body, and has not yet begun it."""

from __future__ import annotations

import asyncio
import pathlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import process_steps
import pytest

from stepfast import AsyncEngine, Client, Engine, Workflow, step, workflow
from stepfast._processes.pool import ProcessPool
from stepfast._processes.process_step import begin_attempt
from stepfast._workflow.step import run_in_this_thread

FINISHED_BODIES: list[str] = []


@step
def return_one() -> int:
    return 1


@step
def late_body() -> str:
    FINISHED_BODIES.append("plain")
    return "plain"


@step(timeout=3600)
def late_body_with_limit() -> str:
    FINISHED_BODIES.append("limited")
    return "limited"


@workflow
def call_late_body() -> str:
    return_one()
    return late_body()


@workflow
def call_late_body_with_limit() -> str:
    return_one()
    return late_body_with_limit()


@workflow
async def call_late_body_in_thread() -> str:
    await return_one.in_thread()
    return await late_body.in_thread()


class Interruption:
    """A profile function that pauses the thread that is about to begin a body, once."""

    def __init__(self, is_place: Callable[[FrameType, str, Any], bool]) -> None:
        self.is_reached, self.is_over = threading.Event(), threading.Event()
        self._is_place = is_place

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if not self.is_reached.is_set() and self._is_place(frame, event, arg):
            self.is_reached.set()
            self.is_over.wait(60)

    @contextmanager
    def install(self) -> Iterator[None]:
        """Installs the function in threads that begin before the end of the block."""
        threading.setprofile(self)
        try:
            yield
        finally:
            threading.setprofile(None)
            self.is_over.set()


def is_return_of_wait(frame: FrameType, event: str, arg: Any) -> bool:
    """Returns whether the call of the step has permitted its body, and the thread returns from the wait."""
    is_wait = event == "c_return" and frame.f_code is run_in_this_thread.__code__
    return is_wait and arg.__name__ == "wait" and frame.f_locals["step"] is late_body


def is_begin_of_limited_thread(frame: FrameType, event: str, arg: Any) -> bool:
    """Returns whether the thread of a body with a time limit begins."""
    return event == "call" and frame.f_code.co_name == "_settle"


def start_until_paused(engine: Engine, program: Workflow[[], str], interruption: Interruption) -> str:
    """Starts executions until a thread is paused, and returns the workflow_id. A fast flush needs no wait."""
    for n in range(1000):
        handle = engine.start(program.options(workflow_id=f"x-{n}"))
        while not interruption.is_reached.wait(0.01):
            if handle.status() == "completed":
                break
        else:
            return handle.workflow_id
        FINISHED_BODIES.clear()
    pytest.fail("no thread was paused")


def cancel_and_wait(client: Client, workflow_id: str) -> None:
    """Cancels an execution, and waits until its status is `cancelled`."""
    assert client.cancel(workflow_id)
    while client.get(workflow_id).status() != "cancelled":
        pass


@pytest.mark.parametrize(
    ("program", "is_place", "body"),
    [
        (call_late_body, is_return_of_wait, "plain"),
        (call_late_body_with_limit, is_begin_of_limited_thread, "limited"),
    ],
    ids=["plain", "limited"],
)
def test_body_does_not_begin_after_cancel(
    url: str, program: Workflow[[], str], is_place: Callable[[FrameType, str, Any], bool], body: str
) -> None:
    FINISHED_BODIES.clear()
    interruption = Interruption(is_place)
    with Client(url) as client:
        with interruption.install(), Engine(url) as engine:
            workflow_id = start_until_paused(engine, program, interruption)
            cancel_and_wait(client, workflow_id)
            interruption.is_over.set()
        assert FINISHED_BODIES == []
        with Engine(url):
            assert client.resume(workflow_id)
            assert client.get(workflow_id).result() == body
        assert [body] == FINISHED_BODIES


def test_body_in_thread_of_loop_does_not_begin_after_cancel(url: str) -> None:
    FINISHED_BODIES.clear()

    def is_place(frame: FrameType, event: str, arg: Any) -> bool:
        # the function that `asyncio.to_thread` calls
        return event == "call" and frame.f_code.co_name == "begin_in_thread" and is_late_body(frame)

    def is_late_body(frame: FrameType) -> bool:
        return frame.f_locals.get("function") is late_body.function

    interruption = Interruption(is_place)

    async def main() -> None:
        async with AsyncEngine(url) as engine:
            await engine.start(call_late_body_in_thread.options(workflow_id="x"))
            assert await asyncio.to_thread(interruption.is_reached.wait, 60)
            with Client(url) as client:
                await asyncio.to_thread(cancel_and_wait, client, "x")
            interruption.is_over.set()

    with interruption.install():
        asyncio.run(main())
    assert FINISHED_BODIES == []

    async def resume() -> None:
        async with AsyncEngine(url) as engine:
            assert await engine.resume("x")
            assert await (await engine.get("x")) == "plain"

    asyncio.run(resume())
    assert FINISHED_BODIES == ["plain"]


class ProcessInterruption(Interruption):
    """A profile function that pauses the code before a process gets a body, and again until the process
    has finished the attempt."""

    def __init__(self) -> None:
        super().__init__(lambda frame, event, _: event == "call" and frame.f_code is begin_attempt.__code__)
        self.is_finished = threading.Event()

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        super().__call__(frame, event, arg)
        if event == "return" and frame.f_code is begin_attempt.__code__:
            self.is_finished.wait(60)
        elif event == "return" and frame.f_code is ProcessPool.finish.__code__:
            self.is_finished.set()


@contextmanager
def worker(url: str, *, is_async: bool) -> Iterator[None]:
    """Opens an engine. An async engine runs in a thread of its own."""
    if not is_async:
        with Engine(url):
            yield
        return
    is_over = threading.Event()

    async def main() -> None:
        async with AsyncEngine(url):
            await asyncio.to_thread(is_over.wait, 60)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@pytest.mark.parametrize(
    "program", [process_steps.touches_file, process_steps.touches_file_async], ids=["sync", "async"]
)
def test_body_in_process_does_not_begin_after_cancel(
    url: str, tmp_path: pathlib.Path, program: Workflow[[str], str]
) -> None:
    marker = tmp_path / "mark"
    interruption = ProcessInterruption()
    with Client(url) as client:
        client.start(program.options(workflow_id="x"), str(marker))
        with interruption.install(), worker(url, is_async=program.is_async):
            assert interruption.is_reached.wait(60)
            cancel_and_wait(client, "x")
            interruption.is_over.set()
            assert interruption.is_finished.wait(60)
        assert not marker.exists()
        with worker(url, is_async=program.is_async):
            assert client.resume("x")
            assert client.get("x").result() == "there"
        assert marker.exists()
