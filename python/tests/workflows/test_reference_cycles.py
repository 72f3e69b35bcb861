"""Executions that fail leave nothing for the collector of cycles."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from stepfast import AsyncEngine, Engine, step, workflow


class Broken(Exception):
    """What steps fail with."""


@step
def breaks() -> None:
    raise Broken("in a step")


@step(timeout=60)
def breaks_in_time() -> None:
    raise Broken("in a step with a limit")


@step
async def breaks_async() -> None:
    raise Broken("in an async step")


@workflow
def cyclic_broken_once() -> None:
    breaks()


@workflow
def cyclic_fails_in_time() -> None:
    breaks_in_time()


@workflow
def cyclic_fails_by_itself() -> None:
    raise Broken("by itself")


@workflow
def catches_broken() -> int:
    for broken in (breaks, breaks_in_time):
        with suppress(Broken):
            broken()
    return 1


@workflow
async def cyclic_fails_async() -> None:
    await breaks_async()


@workflow
async def cyclic_fails_async_in_thread() -> None:
    await breaks.in_thread()


@workflow
async def catches_broken_async() -> int:
    for broken in (breaks_async, breaks.in_thread, breaks_in_time.in_thread):
        with suppress(Broken):
            await broken()
    return 1


#: Executions of each kind: what the collector finds is divided by their number.
MANY = 50


@contextmanager
def uncollected() -> Iterator[list[int]]:
    """How many objects were in cycles, for each execution."""
    found: list[int] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        found.append(gc.collect() // MANY)
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "program",
    [cyclic_broken_once, cyclic_fails_in_time, cyclic_fails_by_itself, catches_broken],
    ids=lambda it: it.name,
)
def test_sync_executions(program: object) -> None:
    work: object = program
    with Engine("memory:") as engine:

        def once() -> None:
            for do in (lambda: engine.run(work), lambda: engine.start(work).result()):  # type: ignore[call-overload]
                with suppress(Broken):
                    do()

        once()
        with uncollected() as found:
            for _ in range(MANY):
                once()
        assert found == [0]


@pytest.mark.parametrize(
    "program",
    [cyclic_fails_async, cyclic_fails_async_in_thread, catches_broken_async],
    ids=lambda it: it.name,
)
def test_async_executions(program: object) -> None:
    work: object = program

    async def main() -> None:
        async with AsyncEngine("memory:") as engine:

            async def once() -> None:
                with suppress(Broken):
                    await engine.run(work)  # type: ignore[call-overload]
                with suppress(Broken):
                    await (await engine.start(work))  # type: ignore[call-overload]

            await once()
            with uncollected() as found:
                for _ in range(MANY):
                    await once()
            assert found == [0]

    asyncio.run(main())
