"""Code that wants the program to end, in one that goes on: the execution is put off, longer each time."""

import asyncio
import sys
import threading
import time

import pytest

from stepfast import AsyncEngine, Engine, Workflow, WorkflowCancelled, step, workflow
from stepfast.values import RemoteError

#: When bodies began.
_begun: list[float] = []
_came = threading.Semaphore(0)
#: So many bodies want the program to end, then one returns.
_exits = 2


def came() -> None:
    _begun.append(time.monotonic())
    _came.release()


@pytest.fixture(autouse=True)
def fresh() -> None:
    global _exits
    _exits = 2
    _begun.clear()
    while _came.acquire(blocking=False):
        pass


@step
def exits() -> str:
    came()
    if len(_begun) <= _exits:
        sys.exit(3)
    return "done"


@workflow
def exiting_code() -> str:
    return exits()


async def cancelled() -> None:
    """Waits for something that is cancelled."""
    came()
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


@workflow
async def cancelled_code() -> None:
    await cancelled()


@step(retries=1, backoff=0.0)
async def cancelled_body() -> None:
    await cancelled()


@workflow
async def with_cancelled_body() -> None:
    await cancelled_body()


def check_pauses() -> None:
    first, second, third = _begun
    assert second - first >= 1.0
    assert third - second >= 2.0


def test_a_thread_cannot_end_the_program(url: str) -> None:
    with Engine(url) as engine:
        assert engine.start(exiting_code).result() == "done"
    check_pauses()


@pytest.mark.parametrize("code", [cancelled_code, with_cancelled_body], ids=["code", "body"])
@pytest.mark.parametrize("how", ["run", "start"])
def test_what_cancels_itself_fails(code: Workflow[[], object], how: str, url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            with pytest.raises(RemoteError, match="this code was not cancelled itself"):
                await (engine.run(code) if how == "run" else await engine.start(code))

    asyncio.run(main())
    assert len(_begun) == (1 if code is cancelled_code else 2)


def test_what_is_put_off_can_be_cancelled(url: str) -> None:
    global _exits
    _exits = 1_000
    with Engine(url) as engine:
        handle = engine.start(exiting_code)
        for _ in range(3):
            assert _came.acquire(timeout=60)
        # that would have been the longest pause so far
        handle.cancel()
        with pytest.raises(WorkflowCancelled):
            handle.result()
        assert len(_begun) == 3


def test_a_caller_that_goes_on_has_not_lost_the_execution(url: str) -> None:
    global _exits
    _exits = 1
    with Engine(url) as engine:
        with pytest.raises(SystemExit) as raised:
            engine.run(exiting_code.options(workflow_id="a"))
        assert raised.value.code == 3
        assert engine.run(exiting_code.options(workflow_id="a")) == "done"
    assert len(_begun) == 2


@workflow
def child_of_exiting() -> str:
    return exiting_code()


def test_the_child_of_a_caller_ends_the_program(url: str) -> None:
    global _exits
    _exits = 1
    with Engine(url) as engine:
        with pytest.raises(SystemExit):
            engine.run(child_of_exiting.options(workflow_id="a"))
        assert engine.get("a").result() == "done"


@step
async def returns_at_once(n: int) -> int:
    return n


@step
async def waits_or_returns(n: int) -> int:
    came()
    if len(_begun) <= 3:
        await asyncio.Event().wait()
    return n


@workflow
async def branches_of_a_caller() -> list[int]:
    try:
        return await asyncio.gather(*[waits_or_returns(i) for i in range(3)])
    finally:
        # a durable call while the code unwinds
        await returns_at_once(7)


def test_branches_of_a_cancelled_caller_are_not_given_up(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            caller = asyncio.create_task(engine.run(branches_of_a_caller.options(workflow_id="a")))
            while len(_begun) < 3:
                await asyncio.sleep(0)
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
            assert await (await engine.get("a")) == [0, 1, 2]
            recorded = [checkpoint.name for checkpoint in (await engine.show("a")).checkpoints]
            assert sorted(recorded) == ["returns_at_once", *["waits_or_returns"] * 3]

    asyncio.run(main())
