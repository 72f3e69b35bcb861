"""Outboxes: messages in transactions of the caller."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from test_outbox import connectors, create_database, driver_url, wait_for_output

from stepfast import (
    AsyncOutbox,
    Client,
    Engine,
    InvalidArgument,
    Outbox,
    Status,
    WorkflowFailed,
    receive,
    workflow,
)


@workflow
def receives_from_outbox(count: int) -> list[Any]:
    return [receive("t") for _ in range(count)]


@workflow
def sends_by_outbox_in_code() -> str:
    try:
        Outbox().send(None, "r", 1)
    except InvalidArgument as error:
        return str(error)
    return ""


def test_outbox_sends_only_committed_messages(database_url: str) -> None:
    create_database(database_url)
    receivers = [f"r{n}" for n in range(len(connectors(database_url)))]
    outbox = Outbox()
    for connect, receiver in zip(connectors(database_url), receivers, strict=True):
        with connect(database_url) as connection:
            outbox.send(connection, receiver, "rolled back", topic="t")
            connection.rollback()
            outbox.start(connection, receives_from_outbox.options(workflow_id=receiver), 2)
            outbox.send(connection, receiver, {"n": 1}, topic="t", message_id="a")
            # a program that retries
            outbox.send(connection, receiver, {"n": 1}, topic="t", message_id="a")
            outbox.send(connection, receiver, {"n": 2}, topic="t")
            connection.commit()
            outbox.send(connection, receiver, "never committed", topic="t")
    with Engine(database_url) as engine:
        for receiver in receivers:
            received = wait_for_output(engine, receiver)
            assert sorted(value["n"] for value in received) == [1, 2]


def test_message_of_outbox_for_missing_receiver_can_be_kept_or_resumed(database_url: str) -> None:
    create_database(database_url)
    connect = connectors(database_url)[0]
    with connect(database_url) as connection:
        kept = Outbox().send(connection, "later", 1, topic="t", keep=True)
        failed = Outbox().send(connection, "missing", 1, topic="t")
        connection.commit()
    with Engine(database_url) as engine:
        assert wait_for_output(engine, kept) is None
        # both messages were taken from the inbox together
        with pytest.raises(WorkflowFailed, match="missing.*SF-0004"):
            engine.get(failed).result()
        assert engine.show(failed).execution.status == Status.FAILED
        assert engine.run(receives_from_outbox.options(workflow_id="later"), 1) == [1]
        handle = engine.start(receives_from_outbox.options(workflow_id="missing"), 1)
        engine.resume(failed)
        assert handle.result() == [1]


def test_async_outbox_sends(postgres_url: str) -> None:
    async def send() -> None:
        async with await psycopg.AsyncConnection.connect(driver_url(postgres_url)) as connection:
            await AsyncOutbox().send(connection, "r", 7, topic="t", keep=True)

    create_database(postgres_url)
    asyncio.run(send())
    with Engine(postgres_url) as engine:
        assert engine.run(receives_from_outbox.options(workflow_id="r"), 1) == [7]


def test_wrong_messages_of_outbox_are_refused(sqlite_url: str) -> None:
    create_database(sqlite_url)
    outbox, connect = Outbox(), connectors(sqlite_url)[0]
    with connect(sqlite_url) as connection:
        for arguments, text in [
            ({"workflow_id": "", "value": 1}, "workflow_id"),
            ({"workflow_id": "r", "value": 1, "topic": "a\0b"}, "topic"),
            ({"workflow_id": "r", "value": 1, "message_id": ""}, "message_id"),
            ({"workflow_id": "r", "value": 1, "keep": "yes"}, "keep"),
            ({"workflow_id": "r", "value": "x" * 70_000}, "65536"),
        ]:
            with pytest.raises(InvalidArgument, match=text):
                outbox.send(connection, **arguments)
        with pytest.raises(InvalidArgument, match="connection"):
            outbox.send("a connection", "r", 1)
        connection.commit()
    with Engine(sqlite_url) as engine:
        assert "call stepfast.send" in engine.run(sends_by_outbox_in_code)
        assert len(engine.list()) == 1
    with Client(sqlite_url) as client:
        assert client.list()[0].workflow == sends_by_outbox_in_code.name
