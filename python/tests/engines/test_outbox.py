"""Outboxes: starts of executions in transactions of the caller."""

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
def greet_from_outbox(name: str, *, loudly: bool = False) -> str:
    return f"hello {name}{'!' if loudly else ''}"


@workflow
def start_from_workflow_code() -> str:
    try:
        Outbox().start(None, greet_from_outbox, "ann")
    except InvalidArgument as error:
        return str(error)
    return ""


def sqlite_path(url: str) -> str:
    """Returns the path of the database file."""
    return url.removeprefix("sqlite:")


def driver_url(url: str) -> str:
    """Returns the URL for a Postgres driver, without the engine's own parameters."""
    return urlsplit(url)._replace(scheme="postgresql", query="").geturl()


@contextmanager
def connect_by_sqlite(url: str) -> Iterator[Any]:
    with closing(sqlite3.connect(sqlite_path(url), timeout=HANG_TIMEOUT)) as connection:
        yield connection


@contextmanager
def connect_by_psycopg(url: str) -> Iterator[Any]:
    with closing(psycopg.connect(driver_url(url))) as connection:
        yield connection


@contextmanager
def connect_by_psycopg_cursor(url: str) -> Iterator[Any]:
    class Cursor(psycopg.Cursor[Any]):
        def commit(self) -> None:
            self.connection.commit()

        def rollback(self) -> None:
            self.connection.rollback()

    opened = psycopg.connect(driver_url(url), cursor_factory=Cursor)
    with closing(opened) as connection, connection.cursor() as cursor:
        yield cursor


def alchemy_url(url: str, driver: str = "psycopg") -> str:
    """Returns the URL for SQLAlchemy."""
    if url.startswith("sqlite"):
        return f"sqlite:///{sqlite_path(url)}"
    return driver_url(url).replace("postgresql", f"postgresql+{driver}")


@contextmanager
def connect_by_alchemy(url: str) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(alchemy_url(url))
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@contextmanager
def connect_by_alchemy_session(url: str) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(alchemy_url(url))
    with sqlalchemy.orm.Session(engine) as session:
        yield session
    engine.dispose()


CONNECTORS_BY_STORE = {
    "sqlite": [connect_by_sqlite, connect_by_alchemy, connect_by_alchemy_session],
    "postgres": [
        connect_by_psycopg,
        connect_by_psycopg_cursor,
        connect_by_alchemy,
        connect_by_alchemy_session,
    ],
}


def connectors(url: str) -> list[Callable[[str], Any]]:
    """Returns the functions that open a connection to the store, one for each supported driver."""
    return CONNECTORS_BY_STORE["sqlite" if url.startswith("sqlite") else "postgres"]


def wait_for_output(engine: Engine, workflow_id: str) -> Any:
    """Waits for an execution from an outbox, and returns its output. A claim finds it within a second."""
    deadline = time.monotonic() + HANG_TIMEOUT
    while True:
        try:
            return engine.get(workflow_id).result(HANG_TIMEOUT)
        except NotFound:
            if time.monotonic() > deadline:
                raise


def create_database(url: str) -> None:
    """Creates the database. No engine is open afterwards, because two SQLite libraries would conflict."""
    with Engine(url, queues=[Queue("mails")]) as engine:
        engine.pause_queue("mails")


def test_outbox_starts_only_committed_executions(database_url: str) -> None:
    create_database(database_url)
    rolled_back, committed = [], []
    for connect in connectors(database_url):
        with connect(database_url) as connection:
            rolled_back.append(Outbox().start(connection, greet_from_outbox, "zoe"))
            connection.rollback()
            committed.append(Outbox().start(connection, greet_from_outbox, "ann"))
            committed.append(
                Outbox().start(connection, greet_from_outbox.options(queue="mails"), "bob", loudly=True)
            )
            committed.append(
                Outbox().start(
                    connection, RemoteWorkflow(greet_from_outbox.name).options(queue=Queue("mails")), "eve"
                )
            )
            connection.commit()
            rolled_back.append(Outbox().start(connection, greet_from_outbox, "zoe"))
    with Engine(database_url) as engine:
        engine.resume_queue("mails")
        outputs = ["hello ann", "hello bob!", "hello eve"] * len(connectors(database_url))
        assert [wait_for_output(engine, it) for it in committed] == outputs
        assert engine.show(committed[1]).execution.queue == "mails"
        for workflow_id in rolled_back:
            with pytest.raises(NotFound):
                engine.get(workflow_id)


def test_outbox_records_options_of_start(database_url: str) -> None:
    create_database(database_url)
    scheduled = []
    for n, connect in enumerate(connectors(database_url)):
        placed = greet_from_outbox.options(
            workflow_id=f"mail-{n}",
            queue="mails",
            key="ann",
            priority=7,
            dedup_id=f"d{n}",
            execution_timeout=3600,
            run_timeout=60,
            attributes={"customer": "acme", "n": str(n)},
        )
        with connect(database_url) as connection:
            assert Outbox().start(connection, placed, "ann") == f"mail-{n}"
            # the inbox already has this start
            Outbox().start(connection, placed, "ann")
            scheduled.append(Outbox().start(connection, greet_from_outbox.options(delay=3600), "late"))
            tomorrow = datetime.now(UTC) + timedelta(days=1)
            scheduled.append(
                Outbox().start(connection, greet_from_outbox.options(start_at=tomorrow), "later")
            )
            connection.commit()
    with Engine(database_url) as engine:
        wait_for_execution(engine, scheduled[-1])
        assert [engine.get(it).status() for it in scheduled] == ["scheduled"] * len(scheduled)
        for n in range(len(connectors(database_url))):
            row = engine.show(f"mail-{n}").execution
            assert (row.status, row.queue, row.key, row.priority) == ("queued", "mails", "ann", 7)
            assert (row.dedup_id, row.run_timeout) == (f"d{n}", timedelta(minutes=1))
            assert row.attributes == {"customer": "acme", "n": str(n)}
            assert row.deadline_at is not None
            assert abs(row.deadline_at - row.created_at - timedelta(hours=1)) < timedelta(seconds=60)
            # a second start with the same arguments returns the first execution
            handle = engine.start(greet_from_outbox.options(workflow_id=f"mail-{n}"), "ann")
            assert handle.workflow_id == f"mail-{n}"
            with pytest.raises(Error):
                engine.start(greet_from_outbox.options(workflow_id=f"mail-{n}"), "bob")


def test_repeated_options_of_outbox_start_are_merged(database_url: str) -> None:
    create_database(database_url)
    placed = greet_from_outbox.options(queue="elsewhere", dedup_id="d", key="ann").options(
        queue="mails", priority=7
    )
    committed = []
    for connect in connectors(database_url):
        with connect(database_url) as connection:
            committed.append(Outbox().start(connection, placed, "ann"))
            connection.commit()
    with Engine(database_url) as engine:
        # all starts have one dedup_id, so only the first becomes an execution
        wait_for_execution(engine, committed[0])
        row = engine.show(committed[0]).execution
        assert (row.queue, row.key, row.priority, row.dedup_id) == ("mails", "ann", 7, "d")
        engine.resume_queue("mails")
        assert engine.get(committed[0]).result() == "hello ann"
        assert engine.count() == 1


def test_outbox_accepts_every_spelling_of_valid_call(database_url: str) -> None:
    create_database(database_url)
    outbox, configured = Outbox(), greet_from_outbox.options(workflow_id="spelled")
    with connectors(database_url)[0](database_url) as connection:
        for call in (
            lambda: outbox.start(connection, configured),  # type: ignore[call-arg]
            lambda: outbox.start(connection, configured, "ann", "bob"),  # type: ignore[call-arg]
        ):
            with pytest.raises(TypeError, match="do not fit greet_from_outbox"):
                call()
        outbox.start(connection, configured, name="ann", loudly=False)
        connection.commit()
    with Engine(database_url) as engine:
        assert wait_for_output(engine, "spelled") == "hello ann"
        assert engine.start(greet_from_outbox.options(workflow_id="spelled"), "ann").result() == "hello ann"


SENDER_PROGRAM = """
import sqlite3, sys
from stepfast import Outbox, RemoteWorkflow
connection = sqlite3.connect(sys.argv[1])
connection.execute("CREATE TABLE orders (name TEXT)")
with connection:
    connection.execute("INSERT INTO orders VALUES ('ann')")
    print(Outbox().start(connection, RemoteWorkflow(sys.argv[2]), "ann"))
"""


def test_outbox_of_another_process_starts_execution(tmp_path: pathlib.Path) -> None:
    with Engine(f"sqlite:{tmp_path}/test.db") as engine:
        command = [sys.executable, "-c", SENDER_PROGRAM, f"{tmp_path}/test.db", greet_from_outbox.name]
        process = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANG_TIMEOUT)
        assert wait_for_output(engine, process.stdout.strip()) == "hello ann"


def test_outbox_refuses_sqlite_file_of_open_engine(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "test.db"
    create_database(f"sqlite:{file}")
    message = "an engine or client of this process has the same file open"
    for url in (f"sqlite:{file}", f"sqlite:///{file}", f"sqlite:{os.path.relpath(file)}"):
        # the connections are older than the engine, and are closed after it
        with (
            connect_by_sqlite(url) as connection,
            connect_by_alchemy(f"sqlite:{file}") as alchemy,
            Engine(url),
        ):
            for open_connection in (connection, alchemy):
                with pytest.raises(InvalidArgument, match=message):
                    Outbox().start(open_connection, greet_from_outbox, "ann")


def test_sqlite3_refuses_file_of_open_engine(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "a b.db"
    with Engine(f"sqlite:{file}"):
        uri = f"{file.as_uri()}?mode=ro"
        for database in (file, str(file), os.fsencode(file), os.path.relpath(file), uri):
            # the second library would shorten the memory that the first one shares with other processes
            with pytest.raises(InvalidArgument, match="has the same file open"):
                sqlite3.connect(database, uri=database is uri)
        for database in (":memory:", "", tmp_path / "other.db", f"file:{tmp_path}/missing.db?mode=rwc"):
            sqlite3.connect(database, uri=True).close()
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT count(*) FROM workers").fetchone() is not None


def wait_for_execution(engine: Engine, workflow_id: str) -> None:
    """Waits until the execution exists."""
    deadline = time.monotonic() + HANG_TIMEOUT
    while True:
        try:
            engine.get(workflow_id)
            return
        except NotFound:
            if time.monotonic() > deadline:
                raise


def test_start_without_notification_is_claimed(postgres_url: str) -> None:
    with Engine(postgres_url) as engine, connect_by_psycopg(postgres_url) as connection:
        workflow_id = Outbox(notify=False).start(connection, greet_from_outbox, "ann")
        connection.commit()
        assert wait_for_output(engine, workflow_id) == "hello ann"


def test_async_outbox_accepts_every_driver(postgres_url: str) -> None:
    async def main() -> list[str]:
        plain, outbox = driver_url(postgres_url), AsyncOutbox()
        committed = []
        asyncpg_connection = await asyncpg.connect(plain)
        try:
            async with asyncpg_connection.transaction():
                committed.append(await outbox.start(asyncpg_connection, greet_from_outbox, "ann"))
                placed = greet_from_outbox.options(
                    workflow_id="given", queue="mails", key="k", priority=1, delay=0
                )
                committed.append(await outbox.start(asyncpg_connection, placed, "bob"))
        finally:
            await asyncpg_connection.close()
        async with await psycopg.AsyncConnection.connect(plain) as connection:
            committed.append(await outbox.start(connection, greet_from_outbox.options(queue="mails"), "eve"))
            await connection.commit()
            await outbox.start(connection, greet_from_outbox.options(queue="mails"), "zoe")
            await connection.rollback()
        engine = sqlalchemy_async.create_async_engine(alchemy_url(postgres_url, "asyncpg"))
        async with sqlalchemy_async.AsyncSession(engine) as session, session.begin():
            committed.append(await outbox.start(session, greet_from_outbox, "joe"))
        async with engine.connect() as alchemy:
            committed.append(await outbox.start(alchemy, greet_from_outbox, "kim"))
            await alchemy.commit()
        await engine.dispose()
        return committed

    with Engine(postgres_url, queues=[Queue("mails")]) as engine:
        committed = asyncio.run(asyncio.wait_for(main(), HANG_TIMEOUT))
        names = ["ann", "bob", "eve", "joe", "kim"]
        assert [wait_for_output(engine, it) for it in committed] == [f"hello {name}" for name in names]
        assert len(engine.list()) == 5


def test_invalid_outbox_starts_are_refused(tmp_path: pathlib.Path) -> None:
    outbox, file = Outbox(), f"sqlite:{tmp_path}/test.db"
    create_database(file)
    with connect_by_sqlite(file) as connection:
        for call, message in [
            (
                lambda: outbox.start(None, greet_from_outbox, "x"),
                "is no connection on which an outbox can write",
            ),
            (lambda: outbox.start(connection, print, "x"), "is no workflow"),  # type: ignore[arg-type]
            (
                lambda: outbox.start(connection, greet_from_outbox, "x" * 2_000_000),
                "an outbox takes at most 1048576",
            ),
            (
                lambda: outbox.start(connection, greet_from_outbox.options(key="k"), "x"),
                "key is 'k', and needs a queue",
            ),
            (
                lambda: outbox.start(connection, greet_from_outbox.options(dedup_id="d"), "x"),
                "dedup_id is 'd', and needs a queue",
            ),
            (lambda: greet_from_outbox.options(priority=0.5), "priority"),  # type: ignore[arg-type]
            (lambda: greet_from_outbox.options(delay=-1), "delay"),
            (lambda: greet_from_outbox.options(workflow_id=""), "workflow_id"),
            (lambda: Outbox(""), "schema"),
        ]:
            with pytest.raises(Error, match=message):
                call()
        with pytest.raises(InvalidArgument, match="is for an Outbox"):
            asyncio.run(AsyncOutbox().start(connection, greet_from_outbox, "x"))
    with Engine(file) as engine:
        assert "in the code of a workflow" in engine.run(start_from_workflow_code)


if sys.platform == "linux":  # /proc lists the open files of a process

    def test_closed_engine_has_no_open_database_files(tmp_path: pathlib.Path) -> None:
        def open_files() -> set[str]:
            """Returns the names of the open files of this process."""
            links = (os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd"))
            return {os.path.basename(os.readlink(link)) for link in links if os.path.lexists(link)}

        database = {"shop.db", "shop.db-wal", "shop.db-shm"}
        with Engine(f"sqlite:{tmp_path}/shop.db") as engine:
            handle = engine.start(greet_from_outbox, "ann")
            assert database & open_files()
        assert not database & open_files(), "a remaining handle keeps files open"
        assert handle.workflow_id


def test_writes_survive_after_close_of_engine(tmp_path: pathlib.Path) -> None:
    # the engine and Python have separate SQLite libraries: a delayed close by one deletes the log
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
            read_program = (
                "import sqlite3, sys; connection = sqlite3.connect(sys.argv[1]); "
                "print(connection.execute('SELECT n FROM orders').fetchall())"
            )
            process = subprocess.run(
                [sys.executable, "-c", read_program, path],
                capture_output=True,
                text=True,
                timeout=HANG_TIMEOUT,
            )
            assert process.stdout == "[(1,)]\n", process.stderr
