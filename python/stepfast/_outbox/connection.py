"""Connections of other libraries, and how a letter is written on them in the transaction that is open."""

from __future__ import annotations

import inspect
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any, Final

from stepfast import _native
from stepfast._outbox.message import Letter
from stepfast._validation.bounds import MAX_SECONDS
from stepfast._workflow.workflow import open_engines
from stepfast.errors import InvalidArgument

#: Asks SQLite for the files of a connection.
DATABASES: Final = "PRAGMA database_list"
#: Columns of the inbox that are filled, and how on Postgres. The server's clock counts.
POSTGRES: Final = {
    "due_at": "coalesce(CAST({start_at} AS timestamptz), "
    "clock_timestamp() + CAST({delay} AS double precision) * interval '1 second')",
    "deadline_at": "clock_timestamp() + CAST({timeout} AS double precision) * interval '1 second'",
    "fingerprint": "CAST({fingerprint} AS bigint)",
    "run_timeout_ms": "CAST({run_timeout_ms} AS bigint)",
    "priority": "CAST({priority} AS integer)",
    "key": "CAST(CAST({key} AS text) AS uuid)",
    "workflow": "CAST({workflow} AS text)",
    "workflow_id": "CAST({workflow_id} AS text)",
    "queue": "CAST({queue} AS text)",
    "queue_key": "CAST({queue_key} AS text)",
    "dedup_id": "CAST({dedup_id} AS text)",
    "attributes": "CAST({attributes} AS jsonb)",
    "input": "CAST({input} AS bytea)",
}


def post_here(connection: Any, letter: Letter, schema: str, notify: bool) -> None:
    """Writes a letter on a connection whose calls are not awaited.

    Raises:
        InvalidArgument: It is none that is known, or its calls are awaited.
    """
    library = library_of(connection, is_async=False)
    if library == "sqlite3":
        refuse_if_open(connection.execute(DATABASES))
        sql, named = on_sqlite(letter)
        connection.execute(sql, named)
    elif library == "psycopg":
        sql, named = on_postgres(letter, schema, notify, "%({})s".format)
        connection.execute(sql, named)
    else:
        sql, named = through_sqlalchemy(connection, letter, schema, notify)
        connection.execute(text(sql), named)


def refuse_if_open(databases: Iterable[Any]) -> None:
    """Refuses a connection to a file that an engine of this process has open.

    Raises:
        InvalidArgument: One of its databases is such a file.
    """
    files = [file for _, _, file in databases if file and os.path.exists(file)]
    for opened in list(open_engines):
        # while one is being closed, too
        held = opened.file if opened.needs_shutdown else None
        if held is None or not os.path.exists(held):
            continue
        if any(os.path.samefile(file, held) for file in files):
            raise InvalidArgument(
                f"an engine or client of this process has the same file open, {held}: it has an SQLite of "
                "its own, and two in one process take each other's locks away; use the outbox in another one"
            )


async def post(connection: Any, letter: Letter, schema: str, notify: bool) -> None:
    """Writes a letter on a connection whose calls are awaited.

    Raises:
        InvalidArgument: It is none that is known, or its calls are not awaited.
    """
    library = library_of(connection, is_async=True)
    if library == "asyncpg":
        values = values_of(letter)
        numbered = {name: f"${n}" for n, name in enumerate(values, 1)}
        await connection.execute(insert(schema, notify, numbered), *values.values())
    elif library == "psycopg":
        sql, named = on_postgres(letter, schema, notify, "%({})s".format)
        await connection.execute(sql, named)
    else:
        sql, named = through_sqlalchemy(connection, letter, schema, notify)
        await connection.execute(text(sql), named)


def library_of(connection: Any, *, is_async: bool) -> str:
    """The library that a connection is of.

    Raises:
        InvalidArgument: It is none that is known, or its calls are awaited where they must not be, or the
            reverse.
    """
    known = ("asyncpg", "psycopg", "sqlalchemy") if is_async else ("psycopg", "sqlalchemy", "sqlite3")
    roots = {base.__module__.partition(".")[0].lstrip("_") for base in type(connection).__mro__}
    found = roots & {*known, "asyncpg", "sqlite3"}
    awaited = found and ("asyncpg" in found or inspect.iscoroutinefunction(connection.execute))
    if found and bool(awaited) != is_async:
        other = "AsyncOutbox" if awaited else "Outbox"
        raise InvalidArgument(
            f"{connection!r} is for an {other}: its calls are {'' if awaited else 'not '}awaited"
        )
    if not found:
        raise InvalidArgument(
            f"{connection!r} is no connection on which an outbox can write: give one of {', '.join(known)}"
        )
    return found.pop()


def seconds(given: float | None) -> float | None:
    """A span of time as drivers take it, which may have been given as any number."""
    return None if given is None else min(float(given), MAX_SECONDS)


def near(start_at: datetime | None) -> datetime | None:
    """A time at which an execution may begin, or the nearest one that the inbox takes."""
    if start_at is None:
        return None
    latest = datetime.now(UTC) + timedelta(seconds=MAX_SECONDS)
    return min(max(start_at, datetime(1970, 1, 1, tzinfo=UTC)), latest)


def common(letter: Letter) -> dict[str, Any]:
    """What a letter says in the same way on both stores, by the names of columns of the inbox."""
    place = letter.place
    run_timeout = seconds(place.run_timeout)
    return {
        "fingerprint": letter.fingerprint,
        "run_timeout_ms": None if run_timeout is None else round(run_timeout * 1000),
        "priority": place.priority,
        "workflow": letter.workflow,
        "workflow_id": place.workflow_id,
        "queue": place.queue,
        "queue_key": place.key,
        "dedup_id": place.dedup_id,
        "attributes": json.dumps(place.attributes) if place.attributes else None,
        "input": letter.input,
    }


def values_of(letter: Letter) -> dict[str, Any]:
    """What a letter says, by the names of its parameters on Postgres."""
    place = letter.place
    times = {
        "start_at": near(place.start_at),
        "delay": seconds(place.delay),
        "timeout": seconds(place.timeout),
    }
    return {**times, "key": letter.key_text, **common(letter)}


def insert(schema: str, notify: bool, parameters: Mapping[str, str]) -> str:
    """The statement for Postgres, with its parameters written as they are here."""
    values = ", ".join(POSTGRES.values()).format(**parameters)
    quoted = schema.replace('"', '""')
    put = f'INSERT INTO "{quoted}".inbox ({", ".join(POSTGRES)}) VALUES ({values})'
    if not notify:
        return put
    channel = _native.hint_channel(schema)
    return f"WITH put AS ({put} RETURNING 1) SELECT pg_notify('{channel}', 'outbox ready') FROM put"


def on_postgres(
    letter: Letter, schema: str, notify: bool, parameter: Callable[[str], str]
) -> tuple[str, dict[str, Any]]:
    """The statement and its values, for parameters by name, written as `parameter` says."""
    values = values_of(letter)
    return insert(schema, notify, {name: parameter(name) for name in values}), values


def on_sqlite(letter: Letter) -> tuple[str, dict[str, Any]]:
    """The statement and its values, for parameters by name. The machine's clock counts."""
    place = letter.place
    now = time.time_ns() // 1000
    start_at = near(place.start_at)
    due_at = None if start_at is None else round(start_at.timestamp() * 1e6)
    delay, timeout = seconds(place.delay), seconds(place.timeout)
    if delay is not None:
        due_at = now + round(delay * 1e6)
    deadline_at = None if timeout is None else now + round(timeout * 1e6)
    times = {"put_at": now, "due_at": due_at, "deadline_at": deadline_at}
    values = {**times, "key": letter.key, **common(letter)}
    parameters = ", ".join(f":{name}" for name in values)
    return f"INSERT INTO inbox ({', '.join(values)}) VALUES ({parameters})", values


def through_sqlalchemy(
    connection: Any, letter: Letter, schema: str, notify: bool
) -> tuple[str, dict[str, Any]]:
    """The statement and its values, for SQLAlchemy.

    Raises:
        InvalidArgument: The database is neither Postgres nor SQLite.
    """
    bind = connection.get_bind() if hasattr(connection, "get_bind") else connection
    dialect: str = bind.dialect.name
    if dialect == "postgresql":
        return on_postgres(letter, schema, notify, ":{}".format)
    if dialect != "sqlite":
        raise InvalidArgument(
            f"{connection!r} is a connection to {dialect}: an outbox is for Postgres and SQLite"
        )
    if not inspect.iscoroutinefunction(connection.execute):
        refuse_if_open(connection.execute(text(DATABASES)))
    return on_sqlite(letter)


def text(sql: str) -> Any:
    """A statement as SQLAlchemy takes it."""
    # whoever has a connection of it has it
    return import_module("sqlalchemy").text(sql)
