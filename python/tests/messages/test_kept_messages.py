"""Messages that are kept for executions that do not exist yet, and messages that steps send."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepfast import (
    AsyncEngine,
    Engine,
    ExecutionEnded,
    InvalidArgument,
    NotFound,
    receive,
    send,
    step,
    workflow,
)


@workflow
def receives_kept(count: int) -> list[Any]:
    return [receive("t") for _ in range(count)]


@workflow
def keeps_messages(receiver: str) -> None:
    send(receiver, 1, topic="t", keep=True)
    send(receiver, 2, topic="t", keep=True)


@workflow
async def keeps_messages_async(receiver: str) -> None:
    await asyncio.gather(*(send(receiver, n, topic="t", keep=True) for n in (1, 2)))


attempts: list[int] = []


@step(retries=1, backoff=0)
def sends_in_step(receiver: str) -> str:
    attempts.append(1)
    send(receiver, 1, topic="t")
    if len(attempts) == 1:
        raise ValueError("again")
    send(receiver, 2, topic="t", keep=True)
    return "sent"


@step(retries=1, backoff=0)
async def sends_in_async_step(receiver: str) -> str:
    attempts.append(1)
    await send(receiver, 1, topic="t")
    if len(attempts) == 1:
        raise ValueError("again")
    await send(receiver, 2, topic="t", keep=True)
    return "sent"


@workflow
def sends_in_its_step(receiver: str) -> str:
    return sends_in_step(receiver)


@workflow
async def sends_in_its_async_step(receiver: str) -> str:
    return await sends_in_async_step(receiver)


@workflow
async def sends_in_its_thread(receiver: str) -> str:
    return await sends_in_step.in_thread(receiver)


@step
def sends_to_missing_in_step() -> str:
    try:
        send("missing", 1)
    except NotFound as error:
        return str(error)
    return "sent"


@workflow
def sends_to_missing_in_its_step() -> str:
    return sends_to_missing_in_step()


@step(process=True)
def sends_in_process() -> str:
    try:
        send("missing", 1)
    except InvalidArgument as error:
        return str(error)
    return "sent"


@workflow
def sends_in_its_process() -> str:
    return sends_in_process()


def test_kept_messages_are_received_by_a_later_execution(url: str) -> None:
    with Engine(url) as engine:
        assert engine.send("r", 1, topic="t", message_id="a", keep=True) == "kept"
        assert engine.send("r", 1, topic="t", message_id="a", keep=True) == "sent before"
        engine.send("r", None, topic="t", keep=True)
        handle = engine.start(receives_kept.options(workflow_id="r"), 3)
        assert engine.send("r", 1, topic="t", message_id="a", keep=True) == "sent before"
        assert handle.send(3, topic="t") == "sent"
        assert handle.result() == [1, None, 3]
        with pytest.raises(ExecutionEnded):
            engine.send("r", 1, topic="t", keep=True)


def test_async_engine_keeps_messages(url: str) -> None:
    async def keep() -> None:
        async with AsyncEngine(url) as engine:
            effects = [await engine.send("r", n, topic="t", keep=True) for n in range(3)]
            assert effects == ["kept"] * 3
            handle = await engine.start(receives_kept.options(workflow_id="r"), 4)
            assert await handle.send(3, topic="t", message_id="a") == "sent"
            assert await handle.send(3, topic="t", message_id="a") == "sent before"
            assert await handle.result() == [0, 1, 2, 3]

    asyncio.run(keep())


def test_workflows_keep_messages(url: str) -> None:
    async def keep() -> None:
        async with AsyncEngine(url) as engine:
            await engine.run(keeps_messages, "a")
            await engine.run(keeps_messages_async, "b")
            assert await engine.run(receives_kept.options(workflow_id="a"), 2) == [1, 2]
            assert sorted(await engine.run(receives_kept.options(workflow_id="b"), 2)) == [1, 2]

    asyncio.run(keep())


@pytest.mark.parametrize("sender", [sends_in_its_step, sends_in_its_async_step, sends_in_its_thread])
def test_step_sends_once_in_all_attempts(url: str, sender: Any) -> None:
    async def run() -> None:
        async with AsyncEngine(url) as engine:
            handle = await engine.start(receives_kept.options(workflow_id="r"), 3)
            assert await engine.run(sender, "r") == "sent"
            assert len(attempts) == 2
            await handle.send(3, topic="t")
            assert await handle.result() == [1, 2, 3]

    attempts.clear()
    asyncio.run(run())


def test_wrong_kept_messages_are_refused(url: str) -> None:
    with Engine(url) as engine:
        for workflow_id in ("batch#7", "01920000-0000-7000-8000-000000000000"):
            with pytest.raises(InvalidArgument, match="no message can be kept"):
                engine.send(workflow_id, 1, keep=True)
        with pytest.raises(InvalidArgument, match="keep"):
            engine.send("r", 1, keep=1)  # type: ignore[arg-type]
        assert "missing" in engine.run(sends_to_missing_in_its_step)
        assert "send is called in step 'sends_in_process'" in engine.run(sends_in_its_process)
