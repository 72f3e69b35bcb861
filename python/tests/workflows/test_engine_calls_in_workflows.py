"""Calls of engines and handles: refused in workflow code, which a replay repeats, and allowed in steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from stepfast import AsyncEngine, AsyncHandle, Engine, Handle, InvalidArgument, Queue, step, workflow

SYNC_CALLS: dict[str, Callable[[Engine, Handle[int]], Any]] = {
    "engine.get": lambda engine, handle: engine.get("a"),
    "engine.list": lambda engine, handle: engine.list(),
    "engine.count": lambda engine, handle: engine.count(),
    "engine.show": lambda engine, handle: engine.show("a"),
    "engine.workers": lambda engine, handle: engine.workers(),
    "engine.dead_letters": lambda engine, handle: engine.dead_letters(),
    "engine.queues": lambda engine, handle: engine.queues(),
    "engine.set_queue": lambda engine, handle: engine.set_queue(Queue("q", concurrency=2)),
    "engine.pause_queue": lambda engine, handle: engine.pause_queue("q"),
    "engine.resume_queue": lambda engine, handle: engine.resume_queue("q"),
    "engine.cancel": lambda engine, handle: engine.cancel("a"),
    "engine.resume": lambda engine, handle: engine.resume("a"),
    "engine.cancel_all": lambda engine, handle: engine.cancel_all(id_prefix="none"),
    "engine.resume_all": lambda engine, handle: engine.resume_all(status="failed"),
    "engine.results": lambda engine, handle: engine.results([handle]),
    "handle.result": lambda engine, handle: handle.result(),
    "handle.status": lambda engine, handle: handle.status(),
    "handle.cancel": lambda engine, handle: handle.cancel(),
    "handle.resume": lambda engine, handle: handle.resume(),
}
ASYNC_CALLS: dict[str, Callable[[AsyncEngine, AsyncHandle[int]], Awaitable[Any]]] = {
    **SYNC_CALLS,  # type: ignore[dict-item]
    "the result of a handle": lambda engine, handle: handle,
}
ENGINE_AND_HANDLE: list[Any] = []


@workflow
def return_one() -> int:
    return 1


@step
def call_in_step(name: str) -> None:
    SYNC_CALLS[name](*ENGINE_AND_HANDLE)


@step
async def call_in_async_step(name: str) -> None:
    await ASYNC_CALLS[name](*ENGINE_AND_HANDLE)


@workflow
def calls_engine() -> list[str]:
    messages = []
    for call in SYNC_CALLS.values():
        try:
            call(*ENGINE_AND_HANDLE)
        except InvalidArgument as error:
            messages.append(str(error))
    for name in SYNC_CALLS:
        call_in_step(name)
    return messages


@workflow
async def calls_engine_async() -> list[str]:
    messages = []
    for call in ASYNC_CALLS.values():
        try:
            await call(*ENGINE_AND_HANDLE)
        except InvalidArgument as error:
            messages.append(str(error))
    for name in ASYNC_CALLS:
        await call_in_async_step(name)
    return messages


def assert_calls_are_refused(messages: list[str], names: list[str]) -> None:
    for message, name in zip(messages, names, strict=True):
        assert name in message or "the result of a handle" in message
        assert "in the code of a workflow" in message and "in a step" in message


def test_sync_workflow_code_must_not_call_engine(url: str) -> None:
    with Engine(url, queues=[Queue("q")]) as engine:
        handle = engine.start(return_one.options(workflow_id="a"))
        assert handle.result() == 1
        ENGINE_AND_HANDLE[:] = [engine, handle]
        assert_calls_are_refused(engine.start(calls_engine).result(), list(SYNC_CALLS))
        assert_calls_are_refused(engine.run(calls_engine), list(SYNC_CALLS))


def test_async_workflow_code_must_not_call_engine(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url, queues=[Queue("q")]) as engine:
            handle = await engine.start(return_one.options(workflow_id="a"))
            assert await handle == 1
            ENGINE_AND_HANDLE[:] = [engine, handle]
            assert_calls_are_refused(await (await engine.start(calls_engine_async)), list(ASYNC_CALLS))
            assert_calls_are_refused(await engine.run(calls_engine_async), list(ASYNC_CALLS))

    asyncio.run(main())
