"""Outboxes: executions that begin if, and only if, a transaction of the caller's own commits."""

from __future__ import annotations

import asyncio
import os
import pathlib
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio as sqlalchemy_async
import sqlalchemy.orm
from watched_process import HANG_TIMEOUT

from stepfast import (
    AsyncOutbox,
    Engine,
    Error,
    InvalidArgument,
    NotFound,
    Outbox,
    Queue,
    RemoteWorkflow,
    workflow,
)


@workflow
def outbox_greet(name: str, *, loudly: bool = False) -> str:
    return f"hello {name}{'!' if loudly else ''}"


@workflow
def outbox_misuses() -> str:
    try:
        Outbox().start(None, outbox_greet, "ann")
    except InvalidArgument as error:
        return str(error)
    return ""


def file_of(url: str) -> str:
    return url.removeprefix("sqlite:")


def plain_postgres(url: str) -> str:
    """The URL without what only the engine knows."""
    return urlsplit(url)._replace(scheme="postgresql", query="").geturl()


@contextmanager
def by_sqlite(url: str) -> Iterator[Any]:
    with closing(sqlite3.connect(file_of(url), timeout=HANG_TIMEOUT)) as connection:
        yield connection


@contextmanager
def by_psycopg(url: str) -> Iterator[Any]:
    with closing(psycopg.connect(plain_postgres(url))) as connection:
        yield connection


@contextmanager
def by_psycopg_cursor(url: str) -> Iterator[Any]:
    class Cursor(psycopg.Cursor[Any]):
        def commit(self) -> None:
            self.connection.commit()

        def rollback(self) -> None:
            self.connection.rollback()

    connected = psycopg.connect(plain_postgres(url), cursor_factory=Cursor)
    with closing(connected) as connection, connection.cursor() as cursor:
        yield cursor


def alchemy_url(url: str, driver: str = "psycopg") -> str:
    if url.startswith("sqlite"):
        return f"sqlite:///{file_of(url)}"
    return plain_postgres(url).replace("postgresql", f"postgresql+{driver}")


@contextmanager
def by_alchemy(url: str) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(alchemy_url(url))
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@contextmanager
def by_alchemy_session(url: str) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(alchemy_url(url))
    with sqlalchemy.orm.Session(engine) as session:
        yield session
    engine.dispose()


WAYS = {
    "sqlite": [by_sqlite, by_alchemy, by_alchemy_session],
    "postgres": [by_psycopg, by_psycopg_cursor, by_alchemy, by_alchemy_session],
}


def ways(url: str) -> list[Callable[[str], Any]]:
    return WAYS["sqlite" if url.startswith("sqlite") else "postgres"]


def outcome(engine: Engine, workflow_id: str) -> Any:
    """The output of what was put into an outbox: a worker sees it within a second."""
    until = time.monotonic() + HANG_TIMEOUT
    while True:
        try:
            return engine.get(workflow_id).result(HANG_TIMEOUT)
        except NotFound:
            if time.monotonic() > until:
                raise


def prepare(url: str) -> None:
    """Makes the database. No engine is open afterwards: two SQLite libraries harm each other."""
    with Engine(url, queues=[Queue("mails")]) as engine:
        engine.pause_queue("mails")


def test_what_is_committed_begins_and_nothing_else(url: str) -> None:
    prepare(url)
    gone, kept = [], []
    for way in ways(url):
        with way(url) as connection:
            gone.append(Outbox().start(connection, outbox_greet, "nobody"))
            connection.rollback()
            kept.append(Outbox().start(connection, outbox_greet, "ann"))
            kept.append(Outbox().start(connection, outbox_greet.options(queue="mails"), "bob", loudly=True))
            kept.append(
                Outbox().start(
                    connection, RemoteWorkflow(outbox_greet.name).options(queue=Queue("mails")), "eve"
                )
            )
            connection.commit()
            gone.append(Outbox().start(connection, outbox_greet, "nobody"))
    with Engine(url) as engine:
        engine.resume_queue("mails")
        said = ["hello ann", "hello bob!", "hello eve"] * len(ways(url))
        assert [outcome(engine, it) for it in kept] == said
        assert engine.show(kept[1]).execution.queue == "mails"
        for workflow_id in gone:
            with pytest.raises(NotFound):
                engine.get(workflow_id)


def test_it_is_told_where_it_stands(url: str) -> None:
    prepare(url)
    late = []
    for n, way in enumerate(ways(url)):
        place = outbox_greet.options(
            workflow_id=f"mail-{n}",
            queue="mails",
            key="ann",
            priority=7,
            dedup_id=f"d{n}",
            execution_timeout=3600,
            run_timeout=60,
            attributes={"customer": "acme", "n": str(n)},
        )
        with way(url) as connection:
            assert Outbox().start(connection, place, "ann") == f"mail-{n}"
            # it is there already
            Outbox().start(connection, place, "ann")
            late.append(Outbox().start(connection, outbox_greet.options(delay=3600), "late"))
            tomorrow = datetime.now(UTC) + timedelta(days=1)
            late.append(Outbox().start(connection, outbox_greet.options(start_at=tomorrow), "later"))
            connection.commit()
    with Engine(url) as engine:
        wait_for(engine, late[-1])
        assert [engine.get(it).status() for it in late] == ["scheduled"] * len(late)
        for n in range(len(ways(url))):
            row = engine.show(f"mail-{n}").execution
            assert (row.status, row.queue, row.key, row.priority) == ("queued", "mails", "ann", 7)
            assert (row.dedup_id, row.run_timeout) == (f"d{n}", 60)
            assert row.attributes == {"customer": "acme", "n": str(n)}
            assert row.deadline_at is not None
            assert abs(row.deadline_at - row.created_at - timedelta(hours=1)) < timedelta(seconds=60)
            # the same start again is the same, by its arguments too
            handle = engine.start(outbox_greet.options(workflow_id=f"mail-{n}"), "ann")
            assert handle.workflow_id == f"mail-{n}"
            with pytest.raises(Error):
                engine.start(outbox_greet.options(workflow_id=f"mail-{n}"), "bob")


def test_options_of_an_outbox_may_be_given_one_after_the_other(url: str) -> None:
    prepare(url)
    place = outbox_greet.options(queue="elsewhere", dedup_id="d", key="ann").options(
        queue="mails", priority=7
    )
    kept = []
    for way in ways(url):
        with way(url) as connection:
            kept.append(Outbox().start(connection, place, "ann"))
            connection.commit()
    with Engine(url) as engine:
        # all have one dedup_id: the first one is there
        wait_for(engine, kept[0])
        row = engine.show(kept[0]).execution
        assert (row.queue, row.key, row.priority, row.dedup_id) == ("mails", "ann", 7, "d")
        engine.resume_queue("mails")
        assert engine.get(kept[0]).result() == "hello ann"
        assert engine.count() == 1


def test_an_outbox_takes_a_call_in_any_spelling_and_no_wrong_one(url: str) -> None:
    prepare(url)
    outbox, spelled = Outbox(), outbox_greet.options(workflow_id="spelled")
    with ways(url)[0](url) as connection:
        for call in (
            lambda: outbox.start(connection, spelled),  # type: ignore[call-arg]
            lambda: outbox.start(connection, spelled, "ann", "bob"),  # type: ignore[call-arg]
        ):
            with pytest.raises(TypeError, match="do not fit outbox_greet"):
                call()
        outbox.start(connection, spelled, name="ann", loudly=False)
        connection.commit()
    with Engine(url) as engine:
        assert outcome(engine, "spelled") == "hello ann"
        assert engine.start(outbox_greet.options(workflow_id="spelled"), "ann").result() == "hello ann"


PROGRAM = """
import sqlite3, sys
from stepfast import Outbox, RemoteWorkflow
connection = sqlite3.connect(sys.argv[1])
connection.execute("CREATE TABLE orders (name TEXT)")
with connection:
    connection.execute("INSERT INTO orders VALUES ('ann')")
    print(Outbox().start(connection, RemoteWorkflow(sys.argv[2]), "ann"))
"""


def test_another_process_puts_something_there(tmp_path: pathlib.Path) -> None:
    with Engine(f"sqlite:{tmp_path}/test.db") as engine:
        command = [sys.executable, "-c", PROGRAM, f"{tmp_path}/test.db", outbox_greet.name]
        put = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANG_TIMEOUT)
        assert outcome(engine, put.stdout.strip()) == "hello ann"


def test_a_sqlite_file_that_an_engine_has_open_is_refused(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "test.db"
    prepare(f"sqlite:{file}")
    said = "an engine or client of this process has the same file open"
    for url in (f"sqlite:{file}", f"sqlite:///{file}", f"sqlite:{os.path.relpath(file)}"):
        connection = sqlite3.connect(file)
        with Engine(url):
            with pytest.raises(InvalidArgument, match=said):
                Outbox().start(connection, outbox_greet, "ann")
            with by_alchemy(f"sqlite:{file}") as alchemy, pytest.raises(InvalidArgument, match=said):
                Outbox().start(alchemy, outbox_greet, "ann")
        connection.close()


def wait_for(engine: Engine, workflow_id: str) -> None:
    until = time.monotonic() + HANG_TIMEOUT
    while True:
        try:
            engine.get(workflow_id)
            return
        except NotFound:
            if time.monotonic() > until:
                raise


def test_an_outbox_without_notifications_is_seen_too(postgres_url: str) -> None:
    with Engine(postgres_url) as engine, by_psycopg(postgres_url) as connection:
        workflow_id = Outbox(notify=False).start(connection, outbox_greet, "ann")
        connection.commit()
        assert outcome(engine, workflow_id) == "hello ann"


def test_awaited_connections(postgres_url: str) -> None:
    async def main() -> list[str]:
        plain, outbox = plain_postgres(postgres_url), AsyncOutbox()
        kept = []
        asyncpg_connection = await asyncpg.connect(plain)
        try:
            async with asyncpg_connection.transaction():
                kept.append(await outbox.start(asyncpg_connection, outbox_greet, "ann"))
                place = outbox_greet.options(workflow_id="given", queue="mails", key="k", priority=1, delay=0)
                kept.append(await outbox.start(asyncpg_connection, place, "bob"))
        finally:
            await asyncpg_connection.close()
        async with await psycopg.AsyncConnection.connect(plain) as connection:
            kept.append(await outbox.start(connection, outbox_greet.options(queue="mails"), "eve"))
            await connection.commit()
            await outbox.start(connection, outbox_greet.options(queue="mails"), "nobody")
            await connection.rollback()
        engine = sqlalchemy_async.create_async_engine(alchemy_url(postgres_url, "asyncpg"))
        async with sqlalchemy_async.AsyncSession(engine) as session, session.begin():
            kept.append(await outbox.start(session, outbox_greet, "joe"))
        async with engine.connect() as alchemy:
            kept.append(await outbox.start(alchemy, outbox_greet, "kim"))
            await alchemy.commit()
        await engine.dispose()
        return kept

    with Engine(postgres_url, queues=[Queue("mails")]) as engine:
        kept = asyncio.run(asyncio.wait_for(main(), HANG_TIMEOUT))
        names = ["ann", "bob", "eve", "joe", "kim"]
        assert [outcome(engine, it) for it in kept] == [f"hello {name}" for name in names]
        assert len(engine.list()) == 5


def test_what_cannot_be_is_refused(tmp_path: pathlib.Path) -> None:
    outbox, file = Outbox(), f"sqlite:{tmp_path}/test.db"
    prepare(file)
    with by_sqlite(file) as connection:
        for call, says in [
            (lambda: outbox.start(None, outbox_greet, "x"), "is no connection on which an outbox can write"),
            (lambda: outbox.start(connection, print, "x"), "is no workflow"),  # type: ignore[arg-type]
            (
                lambda: outbox.start(connection, outbox_greet, "x" * 2_000_000),
                "an outbox takes at most 1048576",
            ),
            (
                lambda: outbox.start(connection, outbox_greet.options(key="k"), "x"),
                "key is 'k', and needs a queue",
            ),
            (
                lambda: outbox.start(connection, outbox_greet.options(dedup_id="d"), "x"),
                "dedup_id is 'd', and needs a queue",
            ),
            (lambda: outbox_greet.options(priority=0.5), "priority"),  # type: ignore[arg-type]
            (lambda: outbox_greet.options(delay=-1), "delay"),
            (lambda: outbox_greet.options(workflow_id=""), "workflow_id"),
            (lambda: Outbox(""), "schema"),
        ]:
            with pytest.raises(Error, match=says):
                call()
        with pytest.raises(InvalidArgument, match="is for an Outbox"):
            asyncio.run(AsyncOutbox().start(connection, outbox_greet, "x"))
    with Engine(file) as engine:
        assert "in the code of a workflow" in engine.run(outbox_misuses)


if sys.platform == "linux":  # tells what a process has open

    def test_a_closed_engine_has_nothing_of_its_file_open(tmp_path: pathlib.Path) -> None:
        def open_files() -> set[str]:
            links = (os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd"))
            return {os.path.basename(os.readlink(link)) for link in links if os.path.lexists(link)}

        database = {"shop.db", "shop.db-wal", "shop.db-shm"}
        with Engine(f"sqlite:{tmp_path}/shop.db") as engine:
            kept = engine.start(outbox_greet, "ann")
            assert database & open_files()
        assert not database & open_files(), "although a handle is still there"
        assert kept.workflow_id


def test_what_is_written_after_an_engine_was_closed_is_there(tmp_path: pathlib.Path) -> None:
    # the two have an SQLite each: a late close of the one would take away the log of the other
    for n in range(10):
        path = tmp_path / f"shop-{n}.db"
        with Engine(f"sqlite:{path}"):
            pass
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE orders (n)")
            connection.commit()
            time.sleep(0.02)
            connection.execute("INSERT INTO orders VALUES (1)")
            connection.commit()
            look = (
                "import sqlite3, sys; connection = sqlite3.connect(sys.argv[1]); "
                "print(connection.execute('SELECT n FROM orders').fetchall())"
            )
            seen = subprocess.run(
                [sys.executable, "-c", look, path], capture_output=True, text=True, timeout=HANG_TIMEOUT
            )
            assert seen.stdout == "[(1,)]\n", seen.stderr
