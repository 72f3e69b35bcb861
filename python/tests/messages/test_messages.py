"""Messages: sent by engines, clients, handles and workflows, and received by the code of workflows."""

from __future__ import annotations

import asyncio
import datetime
import pathlib
from dataclasses import dataclass
from typing import Any

import pytest

from stepfast import (
    AsyncEngine,
    Client,
    EncodeError,
    Engine,
    ExecutionEnded,
    InvalidArgument,
    NotFound,
    Status,
    gather,
    receive,
    send,
    step,
    workflow,
)


@workflow
def receives_messages(count: int) -> list[Any]:
    return [receive("t") for _ in range(count)]


@workflow
async def receives_messages_async(count: int) -> list[Any]:
    return [await receive("t") for _ in range(count)]


@workflow
def waits_for_message(seconds: float) -> Any:
    return receive("t", timeout=seconds)


@workflow
def sends_messages(receiver: str, values: list[int]) -> str:
    for value in values:
        send(receiver, value, topic="t")
    return "sent"


@workflow
async def sends_messages_async(receiver: str, values: list[int]) -> str:
    await asyncio.gather(*(_send_in_task(receiver, value) for value in values))
    return "sent"


async def _send_in_task(receiver: str, value: int) -> None:
    await send(receiver, value, topic="t")


@workflow
def sends_to_missing() -> str:
    try:
        send("missing", 1)
    except NotFound as error:
        return f"{error.code}: {error}"
    return "sent"


@workflow
def receives_in_branches() -> tuple[Any, ...]:
    return gather(lambda: receive("a"), lambda: receive("b"))


@step
def receives_in_step() -> Any:
    return receive("t")


@workflow
def receives_in_its_step() -> Any:
    return receives_in_step()


@dataclass
class MessageValue:
    name: str
    at: datetime.datetime


def wait_for_status(engine: Any, workflow_id: str, status: Status) -> None:
    handle = engine.get(workflow_id)
    while handle.status() != status:
        pass


def test_messages_reach_running_and_suspended_workflows(url: str) -> None:
    with Engine(url, suspend_after=0.05) as engine:
        handle = engine.start(receives_messages.options(workflow_id="r"), 3)
        engine.send("r", 1, topic="t")
        wait_for_status(engine, "r", Status.WAITING)
        handle.send({"two": [2]}, topic="t")
        engine.send("r", None, topic="t")
        assert handle.result() == [1, {"two": [2]}, None]


def test_messages_reach_running_and_suspended_async_workflows(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url, suspend_after=0.05) as engine:
            handle = await engine.start(receives_messages_async.options(workflow_id="r"), 2)
            await engine.send("r", 1, topic="t")
            while await handle.status() != Status.WAITING:
                await asyncio.sleep(0)
            await handle.send(2, topic="t")
            assert await handle == [1, 2]

    asyncio.run(main())


def test_async_engine_sends(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            handle = await engine.start(receives_messages_async.options(workflow_id="r"), 3)
            await engine.send("r", 1, topic="t")
            for _ in range(2):
                await handle.send(2, topic="t", message_id="two")
            await asyncio.gather(*(handle.send(3, topic="t", message_id="three") for _ in range(5)))
            assert await handle == [1, 2, 3]
            with pytest.raises(ExecutionEnded):
                await handle.send(4)

    asyncio.run(main())


def test_client_sends_to_suspended_execution_of_another_engine(url: str) -> None:
    with Engine(url, suspend_after=0.05) as engine, Client(url) as client:
        handle = engine.start(receives_messages.options(workflow_id="r"), 1)
        wait_for_status(client, "r", Status.WAITING)
        value = MessageValue("ann", datetime.datetime(2026, 11, 29, tzinfo=datetime.UTC))
        client.send("r", value, topic="t")
        assert handle.result() == [value]


def test_wait_ends_at_its_timeout(url: str) -> None:
    with Engine(url) as engine:
        assert engine.run(waits_for_message, 0.0) is None
        assert engine.run(waits_for_message, 0.02) is None
        handle = engine.start(waits_for_message.options(workflow_id="r"), 3600.0)
        engine.send("r", "x", topic="t")
        assert handle.result() == "x"
        checkpoint = engine.show("r").checkpoints[0]
        assert (checkpoint.kind, checkpoint.name, checkpoint.value) == ("message", "t", "x")


def test_workflow_sends_to_another(url: str) -> None:
    with Engine(url) as engine:
        handle = engine.start(receives_messages.options(workflow_id="r"), 3)
        assert engine.run(sends_messages.options(workflow_id="s"), "r", [1, 2, 3]) == "sent"
        assert handle.result() == [1, 2, 3]
        assert [it.kind for it in engine.show("s").checkpoints] == ["sent"] * 3


def test_async_workflow_sends_to_another(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            handle = await engine.start(receives_messages_async.options(workflow_id="r"), 3)
            assert await engine.run(sends_messages_async, "r", [1, 2, 3]) == "sent"
            assert sorted(await handle) == [1, 2, 3]

    asyncio.run(main())


def test_branches_receive_their_topics(url: str) -> None:
    with Engine(url) as engine:
        handle = engine.start(receives_in_branches.options(workflow_id="r"))
        engine.send("r", "second", topic="b")
        engine.send("r", "first", topic="a")
        assert handle.result() == ("first", "second")


def test_wrong_messages_are_refused(sqlite_url: str, tmp_path: pathlib.Path) -> None:
    with Engine(sqlite_url) as engine:
        handle = engine.start(receives_messages.options(workflow_id="r"), 1)
        for topic in ("", "a\0b", "x" * 256, 7):
            with pytest.raises(InvalidArgument, match="topic"):
                engine.send("r", 1, topic=topic)  # type: ignore[arg-type]
        for message_id in ("", "a\0b", "x" * 1025, 7):
            with pytest.raises(InvalidArgument, match="message_id"):
                handle.send(1, message_id=message_id)  # type: ignore[arg-type]
        with pytest.raises(EncodeError):
            engine.send("r", tmp_path.open)
        with pytest.raises(InvalidArgument, match="65536"):
            engine.send("r", "x" * 70_000, topic="t")
        with pytest.raises(NotFound, match="missing"):
            engine.send("missing", 1)
        assert engine.run(sends_to_missing).startswith("SF-0004: no execution has workflow_id")
        engine.send("r", 1, topic="t")
        assert handle.result() == [1]
        with pytest.raises(ExecutionEnded, match="has ended with status completed") as raised:
            engine.send("r", 1, topic="t")
        assert raised.value.code == "SF-0042"
        with pytest.raises(InvalidArgument, match="timeout"):
            engine.run(waits_for_message, -1.0)
        with pytest.raises(InvalidArgument, match="outside of the code of a workflow"):
            engine.run(receives_in_its_step)
    with pytest.raises(InvalidArgument, match="outside of the code of a workflow"):
        receive()
    with pytest.raises(InvalidArgument, match=r"engine\.send"):
        send("r", 1)
