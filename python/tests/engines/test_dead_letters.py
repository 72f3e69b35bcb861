"""Dead letters: rows of the inbox that cannot become executions."""

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
from test_outbox import connect_by_psycopg, connectors, create_database, greet_from_outbox, wait_for_output
from watched_process import HANG_TIMEOUT

from stepfast import AsyncClient, AsyncEngine, Client, Conflict, Engine, InvalidArgument, Outbox


def insert_foreign_shard_row(url: str, text: str) -> None:
    """Inserts a start for another shard into the inbox, without an `Outbox`."""
    with connectors(url)[0](url) as connection:
        if url.startswith("sqlite"):
            into, values, key = "inbox (put_at, ", "(0, ?, ?, ?, ?, x'00')", b"\xff" * 16
        else:
            into, values, key = "stepfast.inbox (", "(%s, %s, %s, %s, '\\x00')", uuid.UUID(int=2**128 - 1)
        insert = f"INSERT INTO {into}key, workflow, workflow_id, queue, input) VALUES {values}"
        connection.execute(insert, (key, text, text, text))
        connection.commit()


def test_invalid_inbox_rows_become_dead_letters(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    create_database(database_url)
    hostile = "pay\x1b[2J\u202e\r\n'; DROP TABLE inbox; --"
    insert_foreign_shard_row(database_url, hostile)
    with connectors(database_url)[0](database_url) as connection:
        valid = Outbox().start(connection, greet_from_outbox.options(workflow_id="ann"), "ann")
        conflicting = Outbox().start(connection, greet_from_outbox.options(workflow_id="ann"), "bob")
        misdirected = Outbox(shard=7).start(connection, greet_from_outbox.options(queue="mails"), "eve")
        connection.commit()
    opened_at = datetime.now(UTC)
    with Engine(database_url) as engine:
        assert wait_for_output(engine, valid) == "hello ann"
        letters = engine.dead_letters()
        # one claim refuses all of them, in no defined order
        by_id = {letter.workflow_id: letter for letter in letters}
        assert (len(letters), set(by_id)) == (3, {hostile, conflicting, misdirected})
        assert "1023, and this store is shard 0" in by_id[hostile].reason
        assert "its workflow_id is that of another execution" in by_id[conflicting].reason
        assert by_id[misdirected].reason == "its key names shard 7, and this store is shard 0"
        assert (by_id[hostile].workflow, by_id[hostile].queue) == (hostile, hostile)
        assert (by_id[conflicting].workflow, by_id[conflicting].queue) == (greet_from_outbox.name, None)
        assert by_id[misdirected].queue == "mails"
        assert by_id[misdirected].put_at <= by_id[misdirected].rejected_at
        assert abs(by_id[misdirected].rejected_at - opened_at) < timedelta(seconds=HANG_TIMEOUT)
        assert engine.dead_letters(limit=2) == letters[:2]
        deadline = time.monotonic() + HANG_TIMEOUT
        lines: list[str] = []
        while len(lines) < len(letters) and time.monotonic() < deadline:
            lines = [it.getMessage() for it in caplog.records if "to the dead letters" in it.getMessage()]
        assert len(lines) == len(letters), lines
        assert not [char for char in "".join(lines) if category(char) == "Cc"], lines
        for letter in letters:
            assert any(re.search(rf"(id|letter): {letter.id}\b", line) for line in lines), (letter.id, lines)
        with pytest.raises(InvalidArgument, match="limit is 0, and must be at least 1"):
            engine.dead_letters(limit=0)
        with Client(database_url) as client:
            assert client.dead_letters() == letters

        async def main() -> None:
            async with AsyncEngine(database_url) as engine, AsyncClient(database_url) as client:
                assert await engine.dead_letters() == letters
                assert await client.dead_letters(limit=1) == letters[:1]
                with pytest.raises(InvalidArgument, match="limit is 0, and must be at least 1"):
                    await engine.dead_letters(limit=0)

        asyncio.run(main())


def guide_text() -> str:
    """Returns the text of the guide to outboxes."""
    return (ROOT / "docs/guide/outbox.md").read_text(encoding="utf-8")


def resend_statements(url: str) -> str:
    """Returns the statements of the guide that put dead letter 7 back into the inbox."""
    on_postgres, on_sqlite = re.findall(r"^```sql\n(.*?)^```$", guide_text(), re.DOTALL | re.MULTILINE)
    return on_sqlite if url.startswith("sqlite") else on_postgres


def test_resent_dead_letter_becomes_its_execution(database_url: str) -> None:
    create_database(database_url)
    is_sqlite = database_url.startswith("sqlite")
    into, distant_time = (
        ("inbox", 13_569_465_599_999_999) if is_sqlite else ("stepfast.inbox", "'2399-12-31'")
    )
    run_timeout = timedelta(seconds=500)
    options = {
        "key": "k",
        "priority": 3,
        "dedup_id": "d",
        "attributes": {"city": "Bern"},
        "run_timeout": run_timeout,
    }
    with connectors(database_url)[0](database_url) as connection:
        placed = greet_from_outbox.options(queue="mails", workflow_id="again", delay=3600, **options)  # type: ignore[arg-type]
        Outbox().start(connection, placed, "ann", loudly=True)
        bare = Outbox().start(connection, greet_from_outbox, "bob")
        connection.execute(f"UPDATE {into} SET deadline_at = {distant_time}")
        connection.commit()
    with Engine(database_url) as engine:
        deadline = time.monotonic() + HANG_TIMEOUT
        while len(letters := engine.dead_letters()) < 2:
            assert time.monotonic() < deadline
    assert [letter.workflow_id for letter in letters] == [bare, "again"]
    with connectors(database_url)[0](database_url) as connection:
        for letter in letters:
            for statement in (
                resend_statements(database_url).replace("id = 7", f"id = {letter.id}").split(";")
            ):
                connection.execute(statement)
        connection.commit()
    with Engine(database_url) as engine:
        assert wait_for_output(engine, bare) == "hello bob"
        assert engine.dead_letters() == []
        (execution,) = engine.list(id_prefix="again")
        assert (execution.status, execution.queue, execution.deadline_at) == ("scheduled", "mails", None)
        for name, value in options.items():
            assert getattr(execution, name) == value
        record = engine.show("again")
        assert (record.args, record.kwargs) == (("ann",), {"loudly": True})
        # the arguments are the same, and so is their fingerprint
        engine.start(greet_from_outbox.options(workflow_id="again"), "ann", loudly=True)
        with pytest.raises(Conflict):
            engine.start(greet_from_outbox.options(workflow_id="again"), "eve")


def test_insert_only_role_starts_and_reads_nothing(postgres_url: str) -> None:
    create_database(postgres_url)
    role = f"web_{uuid.uuid4().hex[:12]}"
    with connect_by_psycopg(postgres_url) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN")
        grants = re.findall(r"^    (GRANT .*?) TO shop_web;$", guide_text(), re.DOTALL | re.MULTILINE)
        assert len(grants) == 2
        for grant in grants:
            connection.execute(f"{grant} TO {role}")
        connection.commit()
    parts = urlsplit(postgres_url)
    role_url = parts._replace(netloc=f"{role}@{parts.netloc.rpartition('@')[2]}").geturl()
    with connect_by_psycopg(role_url) as connection:
        placed = greet_from_outbox.options(
            key="k",
            queue="letters",
            priority=1,
            dedup_id="d",
            execution_timeout=900,
            run_timeout=900,
            delay=0,
        )
        placed = placed.options(workflow_id="all", attributes={"a": "b"})
        started = Outbox().start(connection, placed, "ann")
        Outbox(shard=7).start(connection, greet_from_outbox, "bob")
        connection.commit()
        for table in ["inbox", "executions", "dead_letters", "shard"]:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"SELECT 1 FROM stepfast.{table}")
            connection.rollback()
        # the role changes no rows, and reserves no ids of rows
        numbered_insert = (
            "INSERT INTO stepfast.inbox (id, key, workflow, input) OVERRIDING SYSTEM VALUE VALUES (7, "
        )
        numbered_insert += "gen_random_uuid(), 'w', '\\x00')"
        statements = ["UPDATE stepfast.inbox SET queue = 'q'", "DELETE FROM stepfast.inbox", numbered_insert]
        for statement in statements:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
            connection.rollback()
    with Engine(postgres_url) as engine:
        assert wait_for_output(engine, started) == "hello ann"
        assert len(engine.dead_letters()) == 1


def test_unused_inbox_has_no_dead_letters(database_url: str) -> None:
    with Engine(database_url) as engine:
        assert engine.dead_letters() == []
    with Engine("memory:") as engine:
        assert engine.dead_letters() == []
