"""Code of workflows asks nothing of engines and handles: a replay would ask again. Steps may."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from stepfast import AsyncEngine, AsyncHandle, Engine, Handle, InvalidArgument, Queue, step, workflow

SYNC: dict[str, Callable[[Engine, Handle[int]], Any]] = {
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
ASYNC: dict[str, Callable[[AsyncEngine, AsyncHandle[int]], Awaitable[Any]]] = {
    **SYNC,  # type: ignore[dict-item]
    "the result of a handle": lambda engine, handle: handle,
}
HERE: list[Any] = []


@workflow
def outside_one() -> int:
    return 1


@step
def asked_in_a_step(what: str) -> None:
    SYNC[what](*HERE)


@step
async def asked_in_an_async_step(what: str) -> None:
    await ASYNC[what](*HERE)


@workflow
def asks_outside() -> list[str]:
    said = []
    for ask in SYNC.values():
        try:
            ask(*HERE)
        except InvalidArgument as error:
            said.append(str(error))
    for what in SYNC:
        asked_in_a_step(what)
    return said


@workflow
async def asks_outside_async() -> list[str]:
    said = []
    for ask in ASYNC.values():
        try:
            await ask(*HERE)
        except InvalidArgument as error:
            said.append(str(error))
    for what in ASYNC:
        await asked_in_an_async_step(what)
    return said


def check(said: list[str], asked: list[str]) -> None:
    for message, what in zip(said, asked, strict=True):
        assert what in message or "the result of a handle" in message
        assert "in the code of a workflow" in message and "in a step" in message


def test_sync_code_asks_in_steps_only(url: str) -> None:
    with Engine(url, queues=[Queue("q")]) as engine:
        handle = engine.start(outside_one.options(workflow_id="a"))
        assert handle.result() == 1
        HERE[:] = [engine, handle]
        check(engine.start(asks_outside).result(), list(SYNC))
        check(engine.run(asks_outside), list(SYNC))


def test_async_code_asks_in_steps_only(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url, queues=[Queue("q")]) as engine:
            handle = await engine.start(outside_one.options(workflow_id="a"))
            assert await handle == 1
            HERE[:] = [engine, handle]
            check(await (await engine.start(asks_outside_async)), list(ASYNC))
            check(await engine.run(asks_outside_async), list(ASYNC))

    asyncio.run(main())
