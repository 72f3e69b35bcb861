"""Starts of outboxes that cannot become executions: they are kept as dead letters."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from datetime import UTC, datetime, timedelta
from unicodedata import category
from urllib.parse import urlsplit

import psycopg
import pytest
from repository import ROOT
from test_outbox import by_psycopg, outbox_greet, outcome, prepare, ways
from watched_process import HANG_TIMEOUT

from stepfast import AsyncClient, AsyncEngine, Client, Conflict, Engine, InvalidArgument, Outbox


def put_by_hand(url: str, text: str) -> None:
    """Puts a start for another shard into the inbox, as a program does that knows the table."""
    with ways(url)[0](url) as connection:
        if url.startswith("sqlite"):
            into, values, key = "inbox (put_at, ", "(0, ?, ?, ?, ?, x'00')", b"\xff" * 16
        else:
            into, values, key = "stepfast.inbox (", "(%s, %s, %s, %s, '\\x00')", uuid.UUID(int=2**128 - 1)
        insert = f"INSERT INTO {into}key, workflow, workflow_id, queue, input) VALUES {values}"
        connection.execute(insert, (key, text, text, text))
        connection.commit()


def test_what_cannot_become_an_execution_is_a_dead_letter(url: str, caplog: pytest.LogCaptureFixture) -> None:
    prepare(url)
    hostile = "pay\x1b[2J\u202e\r\n'; DROP TABLE inbox; --"
    put_by_hand(url, hostile)
    with ways(url)[0](url) as connection:
        innocent = Outbox().start(connection, outbox_greet.options(workflow_id="ann"), "ann")
        other = Outbox().start(connection, outbox_greet.options(workflow_id="ann"), "bob")
        elsewhere = Outbox(shard=7).start(connection, outbox_greet.options(queue="mails"), "eve")
        connection.commit()
    began = datetime.now(UTC)
    with Engine(url) as engine:
        assert outcome(engine, innocent) == "hello ann"
        letters = engine.dead_letters()
        # of one claim, so there is no order in time
        by_id = {letter.workflow_id: letter for letter in letters}
        assert (len(letters), set(by_id)) == (3, {hostile, other, elsewhere})
        assert "1023, and this store is shard 0" in by_id[hostile].reason
        assert "its workflow_id is that of another execution" in by_id[other].reason
        assert by_id[elsewhere].reason == "its key names shard 7, and this store is shard 0"
        assert (by_id[hostile].workflow, by_id[hostile].queue) == (hostile, hostile)
        assert (by_id[other].workflow, by_id[other].queue) == (outbox_greet.name, None)
        assert by_id[elsewhere].queue == "mails"
        assert by_id[elsewhere].put_at <= by_id[elsewhere].refused_at
        assert abs(by_id[elsewhere].refused_at - began) < timedelta(seconds=HANG_TIMEOUT)
        assert engine.dead_letters(limit=2) == letters[:2]
        ends_at = time.monotonic() + HANG_TIMEOUT
        lines: list[str] = []
        while len(lines) < len(letters) and time.monotonic() < ends_at:
            lines = [it.getMessage() for it in caplog.records if "to the dead letters" in it.getMessage()]
        assert len(lines) == len(letters), lines
        assert not [char for char in "".join(lines) if category(char) == "Cc"], lines
        for letter in letters:
            assert any(re.search(rf"(id|letter): {letter.id}\b", line) for line in lines), (letter.id, lines)
        with pytest.raises(InvalidArgument, match="limit is 0, and must be at least 1"):
            engine.dead_letters(limit=0)
        with Client(url) as client:
            assert client.dead_letters() == letters

        async def main() -> None:
            async with AsyncEngine(url) as engine, AsyncClient(url) as client:
                assert await engine.dead_letters() == letters
                assert await client.dead_letters(limit=1) == letters[:1]
                with pytest.raises(InvalidArgument, match="limit is 0, and must be at least 1"):
                    await engine.dead_letters(limit=0)

        asyncio.run(main())


def guide() -> str:
    return (ROOT / "docs/guide/outbox.md").read_text(encoding="utf-8")


def sent_again(url: str) -> str:
    """What the guide says that puts dead letter 7 back into the inbox."""
    on_postgres, on_sqlite = re.findall(r"^```sql\n(.*?)^```$", guide(), re.DOTALL | re.MULTILINE)
    return on_sqlite if url.startswith("sqlite") else on_postgres


def test_a_dead_letter_that_is_put_back_becomes_what_it_asked_for(url: str) -> None:
    prepare(url)
    is_sqlite = url.startswith("sqlite")
    into, far = ("inbox", 13_569_465_599_999_999) if is_sqlite else ("stepfast.inbox", "'2399-12-31'")
    options = {"key": "k", "priority": 3, "dedup_id": "d", "attributes": {"city": "Bern"}, "run_timeout": 500}
    with ways(url)[0](url) as connection:
        again = outbox_greet.options(queue="mails", workflow_id="again", delay=3600, **options)  # type: ignore[arg-type]
        Outbox().start(connection, again, "ann", loudly=True)
        bare = Outbox().start(connection, outbox_greet, "bob")
        connection.execute(f"UPDATE {into} SET deadline_at = {far}")
        connection.commit()
    with Engine(url) as engine:
        until = time.monotonic() + HANG_TIMEOUT
        while len(letters := engine.dead_letters()) < 2:
            assert time.monotonic() < until
    assert [letter.workflow_id for letter in letters] == [bare, "again"]
    with ways(url)[0](url) as connection:
        for letter in letters:
            for statement in sent_again(url).replace("id = 7", f"id = {letter.id}").split(";"):
                connection.execute(statement)
        connection.commit()
    with Engine(url) as engine:
        assert outcome(engine, bare) == "hello bob"
        assert engine.dead_letters() == []
        (execution,) = engine.list(id_prefix="again")
        assert (execution.status, execution.queue, execution.deadline_at) == ("scheduled", "mails", None)
        for name, value in options.items():
            assert getattr(execution, name) == value
        record = engine.show("again")
        assert (record.args, record.kwargs) == (("ann",), {"loudly": True})
        # as it was asked for, down to the fingerprint
        engine.start(outbox_greet.options(workflow_id="again"), "ann", loudly=True)
        with pytest.raises(Conflict):
            engine.start(outbox_greet.options(workflow_id="again"), "eve")


def test_a_role_that_may_only_insert_starts_and_reads_nothing(postgres_url: str) -> None:
    prepare(postgres_url)
    role = f"web_{uuid.uuid4().hex[:12]}"
    with by_psycopg(postgres_url) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN")
        granted = re.findall(r"^    (GRANT .*?) TO shop_web;$", guide(), re.DOTALL | re.MULTILINE)
        assert len(granted) == 2
        for rights in granted:
            connection.execute(f"{rights} TO {role}")
        connection.commit()
    there = urlsplit(postgres_url)
    theirs = there._replace(netloc=f"{role}@{there.netloc.rpartition('@')[2]}").geturl()
    with by_psycopg(theirs) as connection:
        every = outbox_greet.options(
            key="k",
            queue="letters",
            priority=1,
            dedup_id="d",
            execution_timeout=900,
            run_timeout=900,
            delay=0,
        )
        every = every.options(workflow_id="all", attributes={"a": "b"})
        started = Outbox().start(connection, every, "ann")
        Outbox(shard=7).start(connection, outbox_greet, "bob")
        connection.commit()
        for table in ["inbox", "executions", "dead_letters", "shard"]:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"SELECT 1 FROM stepfast.{table}")
            connection.rollback()
        # nor does a row of its own stand in the way of others
        numbered = "INSERT INTO stepfast.inbox (id, key, workflow, input) OVERRIDING SYSTEM VALUE VALUES (7, "
        numbered += "gen_random_uuid(), 'w', '\\x00')"
        changes = ["UPDATE stepfast.inbox SET queue = 'q'", "DELETE FROM stepfast.inbox", numbered]
        for change in changes:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(change)
            connection.rollback()
    with Engine(postgres_url) as engine:
        assert outcome(engine, started) == "hello ann"
        assert len(engine.dead_letters()) == 1


def test_an_engine_without_outboxes_has_no_dead_letters(url: str) -> None:
    with Engine(url) as engine:
        assert engine.dead_letters() == []
    with Engine("memory:") as engine:
        assert engine.dead_letters() == []
