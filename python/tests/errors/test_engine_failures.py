"""Failures that no code of Python has raised, as the code of workflows and callers sees them."""

import asyncio
import queue

import pytest

import stepfast
from stepfast import (
    AsyncEngine,
    Engine,
    WorkflowCancelled,
    WorkflowFailed,
    current,
    sleep,
    step,
    workflow,
)


@step
def fill(size: int) -> str:
    return "x" * size


@workflow
def full(size: int) -> str:
    return "x" * size


@workflow
def fills(size: int) -> str:
    try:
        return fill(size)
    except WorkflowFailed as error:
        return f"{error.code} {error}"


@workflow
def asks(size: int) -> str:
    try:
        return full("x" * size)  # type: ignore[arg-type]
    except WorkflowFailed as error:
        return f"{error.code} {error}"


def test_what_is_too_large_is_told_in_plain_words(url: str) -> None:
    with Engine(url, value_limit=1000) as engine:
        said = engine.run(fills, 2000)
        assert said.startswith('SF-0007 SF-0007: the outcome of step "fill" has 2004 bytes encoded'), said
        said = engine.run(asks, 2000)
        assert said.startswith('SF-0007 SF-0007: the input of child "full" has'), said

        for handle in (engine.start(full.options(workflow_id="full"), 2000), engine.get("full")):
            with pytest.raises(WorkflowFailed) as failed:
                handle.result()
            said = str(failed.value)
            assert said.startswith(
                'the workflow failed: the output of workflow "full" has 2004 bytes encoded'
            )
            assert "[SF-0007]" in said and "Error" not in said
        error = engine.show("full").error
        assert isinstance(error, WorkflowFailed) and error.code == "SF-0007"


told: queue.Queue[str] = queue.Queue()


@step
def tell() -> None:
    now = current()
    told.put(now.workflow_id)


@step
async def tell_async() -> None:
    now = current()
    told.put(now.workflow_id)


@workflow
def waits() -> None:
    tell()
    sleep(days=1)


@workflow
async def waits_async() -> None:
    await tell_async()
    await sleep(days=1)


@workflow
def outlives(is_awaited_later: bool) -> str:
    try:
        waits.start().result() if is_awaited_later else waits()
    except WorkflowCancelled as cancelled:
        return f"{cancelled.code} {fill(1)}"
    return "not cancelled"


@workflow
async def outlives_async(is_awaited_later: bool) -> str:
    try:
        await (await waits_async.start() if is_awaited_later else waits_async())
    except WorkflowCancelled as cancelled:
        return f"{cancelled.code} {await stepfast.map(square, [2])}"
    return "not cancelled"


@step
async def square(n: int) -> int:
    return n * n


@workflow
def falls_with_it() -> None:
    try:
        waits()
    finally:
        fill(1)


caught: list[Exception] = []


@workflow
def catches_all() -> None:
    try:
        waits()
    except Exception as error:
        caught.append(error)


@pytest.mark.parametrize("is_awaited_later", [False, True])
@pytest.mark.parametrize("suspend_after", [0.0, 5.0])
def test_a_parent_catches_that_its_child_was_cancelled(
    url: str, suspend_after: float, is_awaited_later: bool
) -> None:
    with Engine(url, suspend_after=suspend_after) as engine:
        parent = engine.start(outlives, is_awaited_later)
        child = told.get(timeout=60)
        assert engine.cancel(child)
        assert parent.result(timeout=60) == "SF-0022 x"
        assert parent.status() == "completed"
        error = engine.show(child).error
        assert isinstance(error, WorkflowCancelled) and error.code == "SF-0022"

    async def main() -> None:
        async with AsyncEngine(url, suspend_after=suspend_after) as engine, asyncio.timeout(60):
            parent = await engine.start(outlives_async, is_awaited_later)
            assert await engine.cancel(await asyncio.to_thread(told.get, True, 60))
            assert await parent == "SF-0022 [4]"

    asyncio.run(main())


def test_a_parent_that_does_not_catch_it_has_failed(url: str) -> None:
    with Engine(url) as engine:
        parent = engine.start(falls_with_it.options(workflow_id="falls"))
        assert engine.cancel(told.get(timeout=60))
        for handle in (parent, engine.get("falls")):
            with pytest.raises(WorkflowCancelled) as cancelled:
                handle.result(timeout=60)
            assert cancelled.value.code == "SF-0022"
        assert parent.status() == "failed"


def test_no_code_catches_that_its_own_workflow_was_cancelled(url: str) -> None:
    with Engine(url) as engine:
        parent = engine.start(catches_all)
        child = engine.get(told.get(timeout=60))
        assert parent.cancel()
        for handle in (parent, child):
            with pytest.raises(WorkflowCancelled) as cancelled:
                handle.result(timeout=60)
            assert cancelled.value.code == "SF-0022"
        assert parent.status() == "cancelled"
        assert not caught


def test_a_record_says_that_the_time_was_up(url: str) -> None:
    with Engine(url) as engine:
        handle = engine.start(waits.options(workflow_id="late", execution_timeout=0.01))
        with pytest.raises(WorkflowCancelled):
            handle.result(timeout=60)
        error = engine.show("late").error
        assert isinstance(error, WorkflowCancelled) and error.code == "SF-0021"
    while not told.empty():
        told.get()
