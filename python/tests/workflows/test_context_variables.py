"""Context variables: the empty context in which every execution begins."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

import pytest

from stepfast import AsyncEngine, Engine, current_or_none, sleep, step, workflow

REQUEST: contextvars.ContextVar[str] = contextvars.ContextVar("REQUEST", default="none")


@step
async def read_in_step() -> str:
    return REQUEST.get()


@step
def read_in_thread() -> str:
    return REQUEST.get()


@workflow
async def reads_async() -> list[str]:
    values = [REQUEST.get(), await read_in_step()]
    await sleep(0)
    return [*values, REQUEST.get()]


@workflow
def reads_and_sets() -> str:
    value = REQUEST.get()
    REQUEST.set("the execution's")
    return value


@workflow
async def sets_and_calls_children() -> list[str]:
    REQUEST.set("the parent's")
    return [*await reads_async(), await reads_and_sets.in_thread()]


@workflow
async def sets_in_tasks() -> list[str]:
    """Sets values that its steps, its tasks and its threads read."""
    REQUEST.set("the code's")

    async def read_then_set() -> str:
        value = await read_in_step()
        REQUEST.set("the task's")
        return value

    async def set_then_read() -> str:
        REQUEST.set("the task's")
        await sleep(0.01)
        return REQUEST.get()

    first = await read_in_step()
    await sleep(0.01)
    tasks = await asyncio.gather(read_then_set(), asyncio.create_task(read_then_set()), set_then_read())
    return [first, await read_in_thread.in_thread(), tasks[0], tasks[1], tasks[2]]


@workflow
async def sets_and_fails() -> None:
    REQUEST.set("the code's")
    await sleep(0)
    raise LookupError(REQUEST.get())


@workflow
async def returns_argument(n: int) -> int:
    return n


VALUES_AT_END: list[str] = []


@workflow
async def sets_and_waits() -> None:
    REQUEST.set("the code's")
    try:
        await asyncio.sleep(60)
    finally:
        VALUES_AT_END.append(REQUEST.get())


def test_execution_ignores_context_of_engine_opener(url: str) -> None:
    async def main() -> None:
        REQUEST.set("req-1")
        engine = AsyncEngine(url)
        await engine.open()
        try:
            REQUEST.set("req-2")
            assert await (await engine.start(reads_async)) == ["none"] * 3
            assert await (await engine.start(sets_and_calls_children)) == ["none"] * 4
            assert await (await engine.start(reads_and_sets)) == "none"
        finally:
            await engine.close()

    asyncio.run(main())


def test_executions_in_one_thread_have_separate_contexts(url: str) -> None:
    with Engine(url, max_threads=1) as engine:
        assert [engine.start(reads_and_sets).result() for _ in range(3)] == ["none"] * 3


def call_in_context(context: contextvars.Context, call: Callable[[], Any]) -> Any:
    def set_and_call() -> Any:
        REQUEST.set("req-1")
        output = call()
        assert REQUEST.get() == "req-1", "the execution has changed the context of its caller"
        return output

    return context.run(set_and_call)


def test_sync_run_begins_in_an_empty_context(url: str) -> None:
    with Engine(url) as engine:
        assert call_in_context(contextvars.Context(), lambda: engine.run(reads_and_sets)) == "none"


def test_async_run_begins_in_an_empty_context(url: str) -> None:
    async def main() -> None:
        REQUEST.set("req-1")
        async with AsyncEngine(url) as engine:
            assert await engine.run(reads_async) == ["none"] * 3
            assert await engine.run(sets_and_calls_children) == ["none"] * 4
            assert await engine.run(sets_in_tasks) == ["the code's"] * 4 + ["the task's"]
        assert REQUEST.get() == "req-1"

    asyncio.run(main())


def test_failing_code_restores_context_of_its_caller(url: str) -> None:
    async def main() -> None:
        REQUEST.set("req-1")
        async with AsyncEngine(url) as engine:
            for program in (sets_and_fails, returns_argument):
                with pytest.raises((LookupError, TypeError)):
                    await engine.run(program)  # type: ignore[arg-type, call-arg, unused-ignore]
                assert REQUEST.get() == "req-1" and current_or_none() is None
            assert await engine.run(reads_async) == ["none"] * 3
        assert REQUEST.get() == "req-1"

    asyncio.run(main())


def test_cancelled_caller_keeps_context_of_its_code(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            caller = asyncio.ensure_future(engine.run(sets_and_waits))
            while not VALUES_AT_END:
                await asyncio.sleep(0.01)
                caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller

    VALUES_AT_END.clear()
    REQUEST.set("none")
    asyncio.run(main())
    # the engine has deferred the execution, and may have begun another run
    assert set(VALUES_AT_END) == {"the code's"}
