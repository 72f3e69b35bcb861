"""Deferral of executions whose code raises `SystemExit` or cancels itself, while the program continues."""

import asyncio
import sys
import threading
import time

import pytest

from stepfast import AsyncEngine, AsyncHandle, Engine, Workflow, WorkflowCancelled, step, workflow
from stepfast.values import RemoteError

#: The times at which bodies began, in seconds.
body_starts: list[float] = []
body_has_begun = threading.Semaphore(0)
#: The number of bodies that exit, before one returns.
exit_count = 2


def record_body_start() -> None:
    body_starts.append(time.monotonic())
    body_has_begun.release()


@pytest.fixture(autouse=True)
def reset_counters() -> None:
    global exit_count
    exit_count = 2
    body_starts.clear()
    while body_has_begun.acquire(blocking=False):
        pass


@step
def exit_or_return() -> str:
    record_body_start()
    if len(body_starts) <= exit_count:
        sys.exit(3)
    return "done"


@workflow
def calls_exiting_step() -> str:
    return exit_or_return()


async def await_cancelled_future() -> None:
    """Awaits a future that is cancelled already."""
    record_body_start()
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


@workflow
async def awaits_cancelled_future() -> None:
    await await_cancelled_future()


@step(retries=1, backoff=0.0)
async def await_cancelled_future_in_body() -> None:
    await await_cancelled_future()


@workflow
async def calls_cancelled_body() -> None:
    await await_cancelled_future_in_body()


def assert_pauses_grow() -> None:
    first, second, third = body_starts
    assert second - first >= 1.0
    assert third - second >= 2.0


def test_exit_in_worker_thread_defers_execution(url: str) -> None:
    with Engine(url) as engine:
        assert engine.start(calls_exiting_step).result() == "done"
    assert_pauses_grow()


@pytest.mark.parametrize("code", [awaits_cancelled_future, calls_cancelled_body], ids=["code", "body"])
@pytest.mark.parametrize("method", ["run", "start"])
def test_code_that_cancels_itself_fails(code: Workflow[[], object], method: str, url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            with pytest.raises(RemoteError, match="this code was not cancelled itself"):
                await (engine.run(code) if method == "run" else await engine.start(code))

    asyncio.run(main())
    assert len(body_starts) == (1 if code is awaits_cancelled_future else 2)


def test_deferred_execution_is_cancelled(url: str) -> None:
    global exit_count
    exit_count = 1_000
    with Engine(url) as engine:
        handle = engine.start(calls_exiting_step)
        for _ in range(3):
            assert body_has_begun.acquire(timeout=60)
        # the cancel ends the longest pause so far
        handle.cancel()
        with pytest.raises(WorkflowCancelled):
            handle.result()
        assert len(body_starts) == 3


def test_inline_execution_continues_after_exit(url: str) -> None:
    global exit_count
    exit_count = 1
    with Engine(url) as engine:
        with pytest.raises(SystemExit) as raised:
            engine.run(calls_exiting_step.options(workflow_id="a"))
        assert raised.value.code == 3
        assert engine.run(calls_exiting_step.options(workflow_id="a")) == "done"
    assert len(body_starts) == 2


@workflow
def calls_exiting_child() -> str:
    return calls_exiting_step()


def test_exit_of_inline_child_ends_program(url: str) -> None:
    global exit_count
    exit_count = 1
    with Engine(url) as engine:
        with pytest.raises(SystemExit):
            engine.run(calls_exiting_child.options(workflow_id="a"))
        assert engine.get("a").result() == "done"


@step
async def return_number(n: int) -> int:
    return n


@step
async def wait_or_return(n: int) -> int:
    record_body_start()
    if len(body_starts) <= 3:
        await asyncio.Event().wait()
    return n


@workflow
async def calls_step_while_unwinding() -> list[int]:
    try:
        return await asyncio.gather(*[wait_or_return(i) for i in range(3)])
    finally:
        # a durable call in code that unwinds
        await return_number(7)


def test_branches_of_cancelled_inline_run_continue(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            caller = asyncio.create_task(engine.run(calls_step_while_unwinding.options(workflow_id="a")))
            while len(body_starts) < 3:
                await asyncio.sleep(0)
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
            assert await (await engine.get("a")) == [0, 1, 2]
            recorded = [checkpoint.name for checkpoint in (await engine.show("a")).checkpoints]
            assert sorted(recorded) == ["return_number", *["wait_or_return"] * 3]

    asyncio.run(main())


#: The number of executions whose code has unwound.
unwound_code = threading.Semaphore(0)


@workflow
async def waits_until_unwound() -> None:
    record_body_start()
    try:
        await asyncio.Event().wait()
    finally:
        unwound_code.release()


@workflow
async def exits_on_loop() -> None:
    record_body_start()
    if len(body_starts) <= exit_count:
        sys.exit(3)


def test_exit_of_code_on_loop_keeps_messages_for_next_run_of_loop(url: str) -> None:
    """The loop gets many messages at once. From Python 3.12 on, the code of an execution runs while the loop
    handles its message, and this code ends the loop."""
    global exit_count
    count = 100
    exit_count = count + 1

    async def start_waiting(engine: AsyncEngine) -> list[AsyncHandle[None]]:
        await engine.open()
        handles = [await engine.start(waits_until_unwound) for _ in range(count)]
        while len(body_starts) < count:
            await asyncio.sleep(0.01)
        return handles

    async def exit_and_cancel(engine: AsyncEngine, handles: list[AsyncHandle[None]]) -> None:
        await asyncio.gather(engine.start(exits_on_loop), *[handle.cancel() for handle in handles])
        await asyncio.sleep(60)

    async def close_after_unwinding(engine: AsyncEngine) -> None:
        for _ in range(count):
            assert await asyncio.to_thread(unwound_code.acquire, timeout=60)
        await engine.close()

    with asyncio.Runner() as runner:
        engine = AsyncEngine(url)
        handles = runner.run(start_waiting(engine))
        with pytest.raises(SystemExit):
            runner.run(exit_and_cancel(engine, handles))
        runner.run(close_after_unwinding(engine))


@workflow
async def cancels_all_tasks() -> str:
    record_body_start()
    if len(body_starts) <= exit_count:
        for task in asyncio.all_tasks():
            task.cancel()
    await asyncio.sleep(0)
    return "done"


def test_code_that_cancels_all_tasks_is_deferred(url: str) -> None:
    """A program that ends cancels all tasks. From Python 3.12 on, code begins within the call that creates
    its task, and here it cancels this task, too."""
    global exit_count
    exit_count = 1

    async def start_two() -> None:
        async with AsyncEngine(url) as engine:
            starts = [engine.start(cancels_all_tasks.options(workflow_id=id)) for id in ("a", "b")]
            await asyncio.gather(*starts)
            await asyncio.sleep(60)

    async def wait_for_both() -> list[str]:
        async with AsyncEngine(url) as engine:
            return [await (await engine.get(id)) for id in ("a", "b")]

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(start_two())
    assert asyncio.run(wait_for_both()) == ["done", "done"]
