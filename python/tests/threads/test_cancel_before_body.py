"""A body that had leave to begin, and whose thread then waits, does not begin after a cancel."""

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

BODIES: list[str] = []


@step
def before_it() -> int:
    return 1


@step
def late_body() -> str:
    BODIES.append("plain")
    return "plain"


@step(timeout=3600)
def late_body_with_limit() -> str:
    BODIES.append("limited")
    return "limited"


@workflow
def late_plain() -> str:
    before_it()
    return late_body()


@workflow
def late_limited() -> str:
    before_it()
    return late_body_with_limit()


@workflow
async def late_in_thread() -> str:
    await before_it.in_thread()
    return await late_body.in_thread()


class Interruption:
    """Stops the thread that is about to begin a body, as one that loses the interpreter there."""

    def __init__(self, is_there: Callable[[FrameType, str, Any], bool]) -> None:
        self.reached, self.over = threading.Event(), threading.Event()
        self._is_there = is_there

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if not self.reached.is_set() and self._is_there(frame, event, arg):
            self.reached.set()
            self.over.wait(60)

    @contextmanager
    def installed(self) -> Iterator[None]:
        threading.setprofile(self)
        try:
            yield
        finally:
            threading.setprofile(None)
            self.over.set()


def after_the_wait(frame: FrameType, event: str, arg: Any) -> bool:
    """The call of the step has said that its body may begin, and the thread comes back from there."""
    is_here = event == "c_return" and frame.f_code is run_in_this_thread.__code__
    return is_here and arg.__name__ == "wait" and frame.f_locals["step"] is late_body


def in_the_thread_of_a_limit(frame: FrameType, event: str, arg: Any) -> bool:
    """The thread of a body that has a limit begins."""
    return event == "call" and frame.f_code.co_name == "_settle"


def until_stopped(engine: Engine, program: Workflow[[], str], interruption: Interruption) -> str:
    """Starts executions until a thread is stopped in one: where a flush is over at once, no thread waits."""
    for n in range(1000):
        handle = engine.start(program.options(workflow_id=f"x-{n}"))
        while not interruption.reached.wait(0.01):
            if handle.status() == "completed":
                break
        else:
            return handle.workflow_id
        BODIES.clear()
    pytest.fail("no thread was stopped")


def cancel(client: Client, workflow_id: str) -> None:
    assert client.cancel(workflow_id)
    while client.get(workflow_id).status() != "cancelled":
        pass


@pytest.mark.parametrize(
    ("program", "is_there", "ran"),
    [(late_plain, after_the_wait, "plain"), (late_limited, in_the_thread_of_a_limit, "limited")],
    ids=["plain", "limited"],
)
def test_a_body_does_not_begin_after_a_cancel(
    url: str, program: Workflow[[], str], is_there: Callable[[FrameType, str, Any], bool], ran: str
) -> None:
    BODIES.clear()
    interruption = Interruption(is_there)
    with Client(url) as client:
        with interruption.installed(), Engine(url) as engine:
            workflow_id = until_stopped(engine, program, interruption)
            cancel(client, workflow_id)
            interruption.over.set()
        assert BODIES == []
        with Engine(url):
            assert client.resume(workflow_id)
            assert client.get(workflow_id).result() == ran
        assert [ran] == BODIES


def test_a_body_in_a_thread_of_the_loop_does_not_begin_after_a_cancel(url: str) -> None:
    BODIES.clear()

    def is_there(frame: FrameType, event: str, arg: Any) -> bool:
        # what `asyncio.to_thread` runs
        return event == "call" and frame.f_code.co_name == "begin_in_thread" and is_second(frame)

    def is_second(frame: FrameType) -> bool:
        return frame.f_locals.get("function") is late_body.function

    interruption = Interruption(is_there)

    async def main() -> None:
        async with AsyncEngine(url) as engine:
            await engine.start(late_in_thread.options(workflow_id="x"))
            assert await asyncio.to_thread(interruption.reached.wait, 60)
            with Client(url) as client:
                await asyncio.to_thread(cancel, client, "x")
            interruption.over.set()

    with interruption.installed():
        asyncio.run(main())
    assert BODIES == []

    async def again() -> None:
        async with AsyncEngine(url) as engine:
            assert await engine.resume("x")
            assert await (await engine.get("x")) == "plain"

    asyncio.run(again())
    assert BODIES == ["plain"]


class ProcessInterruption(Interruption):
    """Stops the code that is about to give a body to a process, and again until the process is done with
    it."""

    def __init__(self) -> None:
        super().__init__(lambda frame, event, _: event == "call" and frame.f_code is begin_attempt.__code__)
        self.decided = threading.Event()

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        super().__call__(frame, event, arg)
        if event == "return" and frame.f_code is begin_attempt.__code__:
            self.decided.wait(60)
        elif event == "return" and frame.f_code is ProcessPool.finish.__code__:
            self.decided.set()


@contextmanager
def worker(url: str, *, is_async: bool) -> Iterator[None]:
    """An engine; a loop of its own has a thread of its own."""
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
    "program", [process_steps.marks_late, process_steps.marks_late_async], ids=["sync", "async"]
)
def test_a_body_in_a_process_does_not_begin_after_a_cancel(
    url: str, tmp_path: pathlib.Path, program: Workflow[[str], str]
) -> None:
    mark = tmp_path / "mark"
    interruption = ProcessInterruption()
    with Client(url) as client:
        client.start(program.options(workflow_id="x"), str(mark))
        with interruption.installed(), worker(url, is_async=program.is_async):
            assert interruption.reached.wait(60)
            cancel(client, "x")
            interruption.over.set()
            assert interruption.decided.wait(60)
        assert not mark.exists()
        with worker(url, is_async=program.is_async):
            assert client.resume("x")
            assert client.get("x").result() == "there"
        assert mark.exists()
