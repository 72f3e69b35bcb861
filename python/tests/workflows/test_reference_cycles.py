"""Reference cycles: failed executions leave none for the garbage collector."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from stepfast import AsyncEngine, Engine, step, workflow


class Broken(Exception):
    """An error of steps and of workflow code."""


@step
def fail() -> None:
    raise Broken("in a step")


@step(timeout=60)
def fail_before_timeout() -> None:
    raise Broken("in a step with a limit")


@step
async def fail_async() -> None:
    raise Broken("in an async step")


@workflow
def fails_in_step() -> None:
    fail()


@workflow
def fails_in_step_with_timeout() -> None:
    fail_before_timeout()


@workflow
def fails_in_code() -> None:
    raise Broken("by itself")


@workflow
def catches_failures() -> int:
    for failing_step in (fail, fail_before_timeout):
        with suppress(Broken):
            failing_step()
    return 1


@workflow
async def fails_in_async_step() -> None:
    await fail_async()


@workflow
async def fails_in_step_in_thread() -> None:
    await fail.in_thread()


@workflow
async def catches_failures_async() -> int:
    for failing_step in (fail_async, fail.in_thread, fail_before_timeout.in_thread):
        with suppress(Broken):
            await failing_step()
    return 1


#: The number of executions of each kind, by which the number of collected objects is divided. Other tests
#: leave some objects behind, fewer than this number.
EXECUTIONS_PER_KIND = 200


@contextmanager
def count_objects_in_cycles() -> Iterator[list[int]]:
    """Yields a list that gets the number of objects in cycles per execution at the end."""
    counts: list[int] = []
    gc.collect()
    gc.disable()
    try:
        yield counts
        counts.append(gc.collect() // EXECUTIONS_PER_KIND)
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "program",
    [fails_in_step, fails_in_step_with_timeout, fails_in_code, catches_failures],
    ids=lambda program: program.name,
)
def test_failed_sync_execution_leaves_no_reference_cycles(program: object) -> None:
    target: object = program
    with Engine("memory:") as engine:

        def run_once() -> None:
            for call in (lambda: engine.run(target), lambda: engine.start(target).result()):  # type: ignore[call-overload]
                with suppress(Broken):
                    call()

        run_once()
        with count_objects_in_cycles() as counts:
            for _ in range(EXECUTIONS_PER_KIND):
                run_once()
        assert counts == [0]


@pytest.mark.parametrize(
    "program",
    [fails_in_async_step, fails_in_step_in_thread, catches_failures_async],
    ids=lambda program: program.name,
)
def test_failed_async_execution_leaves_no_reference_cycles(program: object) -> None:
    target: object = program

    async def main() -> None:
        async with AsyncEngine("memory:") as engine:

            async def run_once() -> None:
                with suppress(Broken):
                    await engine.run(target)  # type: ignore[call-overload]
                with suppress(Broken):
                    await (await engine.start(target))  # type: ignore[call-overload]

            await run_once()
            with count_objects_in_cycles() as counts:
                for _ in range(EXECUTIONS_PER_KIND):
                    await run_once()
            assert counts == [0]

    asyncio.run(main())
