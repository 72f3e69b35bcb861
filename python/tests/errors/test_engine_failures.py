"""Failures that no Python code has raised, as exceptions in workflows and at callers."""

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
def make_text(size: int) -> str:
    return "x" * size


@workflow
def return_text(size: int) -> str:
    return "x" * size


@workflow
def catch_large_outcome(size: int) -> str:
    try:
        return make_text(size)
    except WorkflowFailed as error:
        return f"{error.code} {error}"


@workflow
def catch_large_input(size: int) -> str:
    try:
        return return_text("x" * size)  # type: ignore[arg-type]
    except WorkflowFailed as error:
        return f"{error.code} {error}"


def test_large_value_fails_with_plain_message(url: str) -> None:
    with Engine(url, value_limit=1000) as engine:
        message = engine.run(catch_large_outcome, 2000)
        assert message.startswith('SF-0007 the outcome of step "make_text" has 2004 bytes encoded'), message
        message = engine.run(catch_large_input, 2000)
        assert message.startswith('SF-0007 the input of child "return_text" has'), message

        for handle in (engine.start(return_text.options(workflow_id="large"), 2000), engine.get("large")):
            with pytest.raises(WorkflowFailed) as failed:
                handle.result()
            message = str(failed.value)
            assert message.startswith(
                'the workflow failed: the output of workflow "return_text" has 2004 bytes encoded'
            )
            assert "[SF-0007]" in message and "Error" not in message
        error = engine.show("large").error
        assert isinstance(error, WorkflowFailed) and error.code == "SF-0007"


REPORTED_IDS: queue.Queue[str] = queue.Queue()


@step
def report_id() -> None:
    execution = current()
    REPORTED_IDS.put(execution.workflow_id)


@step
async def report_id_async() -> None:
    execution = current()
    REPORTED_IDS.put(execution.workflow_id)


@workflow
def report_and_sleep() -> None:
    report_id()
    sleep(days=1)


@workflow
async def report_and_sleep_async() -> None:
    await report_id_async()
    await sleep(days=1)


@workflow
def catch_cancelled_child(is_awaited_later: bool) -> str:
    try:
        report_and_sleep.start().result() if is_awaited_later else report_and_sleep()
    except WorkflowCancelled as cancelled:
        return f"{cancelled.code} {make_text(1)}"
    return "not cancelled"


@workflow
async def catch_cancelled_child_async(is_awaited_later: bool) -> str:
    try:
        await (await report_and_sleep_async.start() if is_awaited_later else report_and_sleep_async())
    except WorkflowCancelled as cancelled:
        return f"{cancelled.code} {await stepfast.map(square, [2])}"
    return "not cancelled"


@step
async def square(n: int) -> int:
    return n * n


@workflow
def fail_with_cancelled_child() -> None:
    try:
        report_and_sleep()
    finally:
        make_text(1)


CAUGHT_ERRORS: list[Exception] = []


@workflow
def catch_every_exception() -> None:
    try:
        report_and_sleep()
    except Exception as error:
        CAUGHT_ERRORS.append(error)


@pytest.mark.parametrize("is_awaited_later", [False, True])
@pytest.mark.parametrize("suspend_after", [0.0, 5.0])
def test_parent_catches_cancellation_of_its_child(
    url: str, suspend_after: float, is_awaited_later: bool
) -> None:
    with Engine(url, suspend_after=suspend_after) as engine:
        parent = engine.start(catch_cancelled_child, is_awaited_later)
        child = REPORTED_IDS.get(timeout=60)
        assert engine.cancel(child)
        assert parent.result(timeout=60) == "SF-0022 x"
        assert parent.status() == "completed"
        error = engine.show(child).error
        assert isinstance(error, WorkflowCancelled) and error.code == "SF-0022"

    async def main() -> None:
        async with AsyncEngine(url, suspend_after=suspend_after) as engine, asyncio.timeout(60):
            parent = await engine.start(catch_cancelled_child_async, is_awaited_later)
            assert await engine.cancel(await asyncio.to_thread(REPORTED_IDS.get, True, 60))
            assert await parent == "SF-0022 [4]"

    asyncio.run(main())


def test_parent_fails_by_uncaught_cancellation_of_its_child(url: str) -> None:
    with Engine(url) as engine:
        parent = engine.start(fail_with_cancelled_child.options(workflow_id="fails"))
        assert engine.cancel(REPORTED_IDS.get(timeout=60))
        for handle in (parent, engine.get("fails")):
            with pytest.raises(WorkflowCancelled) as cancelled:
                handle.result(timeout=60)
            assert cancelled.value.code == "SF-0022"
        assert parent.status() == "failed"


def test_cancelled_workflow_catches_no_exception(url: str) -> None:
    with Engine(url) as engine:
        parent = engine.start(catch_every_exception)
        child = engine.get(REPORTED_IDS.get(timeout=60))
        assert parent.cancel()
        for handle in (parent, child):
            with pytest.raises(WorkflowCancelled) as cancelled:
                handle.result(timeout=60)
            assert cancelled.value.code == "SF-0022"
        assert parent.status() == "cancelled"
        assert not CAUGHT_ERRORS


def test_record_has_error_code_of_time_limit(url: str) -> None:
    with Engine(url) as engine:
        handle = engine.start(report_and_sleep.options(workflow_id="late", execution_timeout=0.01))
        with pytest.raises(WorkflowCancelled):
            handle.result(timeout=60)
        error = engine.show("late").error
        assert isinstance(error, WorkflowCancelled) and error.code == "SF-0021"
    while not REPORTED_IDS.empty():
        REPORTED_IDS.get()
