"""Context variables: an execution begins in an empty context, unless its caller runs its code."""

from __future__ import annotations

import asyncio
import contextvars

from stepfast import AsyncEngine, Engine, sleep, step, workflow

REQUEST: contextvars.ContextVar[str] = contextvars.ContextVar("REQUEST", default="none")


@step
async def request_in_step() -> str:
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


def test_the_code_that_a_caller_runs_sees_its_context(url: str) -> None:
    async def main() -> None:
        REQUEST.set("req-1")
        async with AsyncEngine(url) as engine:
            assert await engine.run(request_async) == ["req-1"] * 3

    asyncio.run(main())
