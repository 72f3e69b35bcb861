"""Inserts rows into the inbox by connections of other libraries, in the open transactions of these
connections."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any, Final

from stepfast import _native
from stepfast._outbox.inbox_row import InboxRow
from stepfast._runtime.sqlite_connections import reject_open_files
from stepfast._validation.bounds import MAX_SECONDS
from stepfast.errors import InvalidArgument

#: The query for the database files of an SQLite connection.
SQLITE_FILES: Final = "PRAGMA database_list"
#: The SQL expressions that fill the columns of the inbox on Postgres. Times are by the server's clock.
POSTGRES_COLUMNS: Final = {
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


def insert_row(connection: Any, row: InboxRow, schema: str, notify: bool) -> None:
    """Inserts a row by a connection whose calls are sync.

    Args:
        connection: The connection.
        row: The row.
        schema: On Postgres, the schema of the engine's tables.
        notify: On Postgres, whether the commit notifies the workers.

    Raises:
        InvalidArgument: The connection is of an unknown library, or its calls are awaited.
    """
    library = _library_of(connection, is_async=False)
    if library == "sqlite3":
        reject_open_files(file for _, _, file in connection.execute(SQLITE_FILES))
        sql, values = _sqlite_insert(row)
        connection.execute(sql, values)
    elif library == "psycopg":
        sql, values = _postgres_insert(row, schema, notify, "%({})s".format)
        connection.execute(sql, values)
    else:
        sql, values = _sqlalchemy_insert(connection, row, schema, notify)
        connection.execute(_sqlalchemy_text(sql), values)


async def insert_row_async(connection: Any, row: InboxRow, schema: str, notify: bool) -> None:
    """Inserts a row by a connection whose calls are awaited.

    Args:
        connection: The connection.
        row: The row.
        schema: On Postgres, the schema of the engine's tables.
        notify: On Postgres, whether the commit notifies the workers.

    Raises:
        InvalidArgument: The connection is of an unknown library, or its calls are sync.
    """
    library = _library_of(connection, is_async=True)
    if library == "asyncpg":
        values = _postgres_values(row)
        numbered = {name: f"${n}" for n, name in enumerate(values, 1)}
        await connection.execute(_postgres_statement(schema, notify, numbered), *values.values())
    elif library == "psycopg":
        sql, values = _postgres_insert(row, schema, notify, "%({})s".format)
        await connection.execute(sql, values)
    else:
        sql, values = _sqlalchemy_insert(connection, row, schema, notify)
        await connection.execute(_sqlalchemy_text(sql), values)


def _library_of(connection: Any, *, is_async: bool) -> str:
    """Returns the name of the library to which a connection belongs.

    Args:
        connection: The connection, as the caller has given it.
        is_async: Whether the outbox awaits the calls of the connection.
    """
    known = ("asyncpg", "psycopg", "sqlalchemy") if is_async else ("psycopg", "sqlalchemy", "sqlite3")
    packages = {base.__module__.partition(".")[0].lstrip("_") for base in type(connection).__mro__}
    found = packages & {*known, "asyncpg", "sqlite3"}
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


def _cap_seconds(seconds: float | None) -> float | None:
    """Returns a time span in seconds, capped at the longest one that the inbox can hold."""
    return None if seconds is None else min(seconds, MAX_SECONDS)


def _nearest(start_at: datetime | None) -> datetime | None:
    """Returns `start_at`, moved into the range of times that the inbox can hold."""
    if start_at is None:
        return None
    latest = datetime.now(UTC) + timedelta(seconds=MAX_SECONDS)
    return min(max(start_at, datetime(1970, 1, 1, tzinfo=UTC)), latest)


def _common_values(row: InboxRow) -> dict[str, Any]:
    """Returns the values that are the same on both stores, by the name of the column of the inbox."""
    options = row.options
    run_timeout = _cap_seconds(options.get("run_timeout"))
    attributes = options.get("attributes")
    return {
        "fingerprint": row.fingerprint,
        "run_timeout_ms": None if run_timeout is None else round(run_timeout * 1000),
        "priority": options.get("priority"),
        "workflow": row.workflow,
        "workflow_id": options.get("workflow_id"),
        "queue": options.get("queue"),
        "queue_key": options.get("key"),
        "dedup_id": options.get("dedup_id"),
        "attributes": json.dumps(attributes) if attributes else None,
        "input": row.input,
    }


def _postgres_values(row: InboxRow) -> dict[str, Any]:
    """Returns the values for Postgres, by the name of the statement's parameter."""
    times = {
        "start_at": _nearest(row.options.get("start_at")),
        "delay": _cap_seconds(row.options.get("delay")),
        "timeout": _cap_seconds(row.options.get("execution_timeout")),
    }
    return {**times, "key": row.key_text, **_common_values(row)}


def _postgres_statement(schema: str, notify: bool, parameters: Mapping[str, str]) -> str:
    """Returns the statement for Postgres, with its parameters in the syntax of the connection's library."""
    values = ", ".join(POSTGRES_COLUMNS.values()).format(**parameters)
    quoted = schema.replace('"', '""')
    insert = f'INSERT INTO "{quoted}".inbox ({", ".join(POSTGRES_COLUMNS)}) VALUES ({values})'
    if not notify:
        return insert
    channel = _native.hint_channel(schema)
    return f"WITH put AS ({insert} RETURNING 1) SELECT pg_notify('{channel}', 'outbox ready') FROM put"


def _postgres_insert(
    row: InboxRow, schema: str, notify: bool, parameter: Callable[[str], str]
) -> tuple[str, dict[str, Any]]:
    """Returns the statement for Postgres and its values by name. The function `parameter` returns a parameter
    in the syntax of the connection's library."""
    values = _postgres_values(row)
    return _postgres_statement(schema, notify, {name: parameter(name) for name in values}), values


def _sqlite_insert(row: InboxRow) -> tuple[str, dict[str, Any]]:
    """Returns the statement for SQLite and its values by name. Times are by the machine's clock."""
    now = time.time_ns() // 1000
    start_at = _nearest(row.options.get("start_at"))
    due_at = None if start_at is None else round(start_at.timestamp() * 1e6)
    delay, timeout = (
        _cap_seconds(row.options.get("delay")),
        _cap_seconds(row.options.get("execution_timeout")),
    )
    if delay is not None:
        due_at = now + round(delay * 1e6)
    deadline_at = None if timeout is None else now + round(timeout * 1e6)
    times = {"put_at": now, "due_at": due_at, "deadline_at": deadline_at}
    values = {**times, "key": row.key, **_common_values(row)}
    parameters = ", ".join(f":{name}" for name in values)
    return f"INSERT INTO inbox ({', '.join(values)}) VALUES ({parameters})", values


def _sqlalchemy_insert(
    connection: Any, row: InboxRow, schema: str, notify: bool
) -> tuple[str, dict[str, Any]]:
    """Returns the statement for SQLAlchemy and its values by name."""
    bind = connection.get_bind() if hasattr(connection, "get_bind") else connection
    dialect: str = bind.dialect.name
    if dialect == "postgresql":
        return _postgres_insert(row, schema, notify, ":{}".format)
    if dialect != "sqlite":
        raise InvalidArgument(
            f"{connection!r} is a connection to {dialect}: an outbox is for Postgres and SQLite"
        )
    if not inspect.iscoroutinefunction(connection.execute):
        databases = connection.execute(_sqlalchemy_text(SQLITE_FILES))
        reject_open_files(file for _, _, file in databases)
    return _sqlite_insert(row)


def _sqlalchemy_text(sql: str) -> Any:
    # imported only here: a program with a connection of SQLAlchemy has imported SQLAlchemy already
    return import_module("sqlalchemy").text(sql)
