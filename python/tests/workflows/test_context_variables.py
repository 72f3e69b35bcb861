"""Context variables: every execution begins in an empty context."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

import pytest

from stepfast import AsyncEngine, Engine, current_or_none, sleep, step, workflow

REQUEST: contextvars.ContextVar[str] = contextvars.ContextVar("REQUEST", default="none")


@step
async def request_in_step() -> str:
    return REQUEST.get()


@step
def request_in_thread() -> str:
    return REQUEST.get()


@workflow
async def request_async() -> list[str]:
    seen = [REQUEST.get(), await request_in_step()]
    await sleep(0)
    return [*seen, REQUEST.get()]


@workflow
def request_sync() -> str:
    seen = REQUEST.get()
    REQUEST.set("what an execution has set")
    return seen


@workflow
async def request_of_children() -> list[str]:
    REQUEST.set("the parent's")
    return [*await request_async(), await request_sync.in_thread()]


@workflow
async def request_of_tasks() -> list[str]:
    """What code has set is seen by its steps, its tasks and its threads."""
    REQUEST.set("the code's")

    async def inside() -> str:
        seen = await request_in_step()
        REQUEST.set("the task's")
        return seen

    async def own() -> str:
        REQUEST.set("the task's")
        await sleep(0.01)
        return REQUEST.get()

    first = await request_in_step()
    await sleep(0.01)
    tasks = await asyncio.gather(inside(), asyncio.create_task(inside()), own())
    return [first, await request_in_thread.in_thread(), tasks[0], tasks[1], tasks[2]]


@workflow
async def request_fails() -> None:
    REQUEST.set("the code's")
    await sleep(0)
    raise LookupError(REQUEST.get())


@workflow
async def request_takes_an_argument(n: int) -> int:
    return n


SEEN_AT_THE_END: list[str] = []


@workflow
async def request_waits() -> None:
    REQUEST.set("the code's")
    try:
        await asyncio.sleep(60)
    finally:
        SEEN_AT_THE_END.append(REQUEST.get())


def test_executions_do_not_see_the_context_of_whoever_opens_the_engine(url: str) -> None:
    async def main() -> None:
        REQUEST.set("req-1")
        engine = AsyncEngine(url)
        await engine.open()
        try:
            REQUEST.set("req-2")
            assert await (await engine.start(request_async)) == ["none"] * 3
            assert await (await engine.start(request_of_children)) == ["none"] * 4
            assert await (await engine.start(request_sync)) == "none"
        finally:
            await engine.close()

    asyncio.run(main())


def test_executions_of_one_thread_do_not_see_each_others_context(url: str) -> None:
    with Engine(url, max_threads=1) as engine:
        assert [engine.start(request_sync).result() for _ in range(3)] == ["none"] * 3


def run_in(context: contextvars.Context, call: Callable[[], Any]) -> Any:
    def inside() -> Any:
        REQUEST.set("req-1")
        output = call()
        assert REQUEST.get() == "req-1", "the execution has changed the context of its caller"
        return output

    return context.run(inside)


def test_sync_run_begins_in_an_empty_context(url: str) -> None:
    with Engine(url) as engine:
        assert run_in(contextvars.Context(), lambda: engine.run(request_sync)) == "none"


def test_async_run_begins_in_an_empty_context(url: str) -> None:
    async def main() -> None:
        REQUEST.set("req-1")
        async with AsyncEngine(url) as engine:
            assert await engine.run(request_async) == ["none"] * 3
            assert await engine.run(request_of_children) == ["none"] * 4
            assert await engine.run(request_of_tasks) == ["the code's"] * 4 + ["the task's"]
        assert REQUEST.get() == "req-1"

    asyncio.run(main())


def test_failing_code_leaves_the_context_of_its_caller(url: str) -> None:
    async def main() -> None:
        REQUEST.set("req-1")
        async with AsyncEngine(url) as engine:
            for program in (request_fails, request_takes_an_argument):
                with pytest.raises((LookupError, TypeError)):
                    await engine.run(program)  # type: ignore[arg-type, call-arg, unused-ignore]
                assert REQUEST.get() == "req-1" and current_or_none() is None
            assert await engine.run(request_async) == ["none"] * 3
        assert REQUEST.get() == "req-1"

    asyncio.run(main())


def test_cancelled_caller_leaves_the_context_of_its_code(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            caller = asyncio.ensure_future(engine.run(request_waits))
            while not SEEN_AT_THE_END:
                await asyncio.sleep(0.01)
                caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller

    SEEN_AT_THE_END.clear()
    REQUEST.set("none")
    asyncio.run(main())
    # the execution was requeued, and may have begun again
    assert set(SEEN_AT_THE_END) == {"the code's"}
