"""A database of its own for each run, and how DBOS is configured there."""

import importlib.metadata
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from dbos import DBOSConfig

VERSION = importlib.metadata.version("dbos")


def say(**result: object) -> None:
    """Prints a result as a line of JSON."""
    print(json.dumps({"peer": "dbos", **result}), flush=True)


@contextmanager
def fresh(server: str) -> Iterator[str]:
    """The URL of a new database on the server, which goes at the end."""
    name = f"stepfast_peer_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        address, _, query = server.partition("?")
        scheme, _, place = address.partition("://")
        try:
            yield f"postgresql://{place.split('/')[0]}/{name}" + (f"?{query}" if query else "")
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def configured(url: str, executor: str) -> DBOSConfig:
    """Its defaults, but for its logs. All processes have the same code, so the same version."""
    return {
        "name": "stepfast-peer",
        "system_database_url": url,
        "executor_id": executor,
        "application_version": "1",
        "log_level": "ERROR",
    }


def settings(url: str) -> dict[str, object]:
    """What an acknowledgement promises there."""
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit')"
        ).fetchone()
    assert row is not None
    return {"postgres": row[0], "fsync": row[1], "synchronous_commit": row[2]}


def logged(url: str) -> tuple[int, int]:
    """Bytes of log that the server has written so far, and how often it was flushed."""
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint, wal_sync FROM pg_stat_wal"
        ).fetchone()
    assert row is not None
    return row[0], row[1]


def left(url: str, queue: str) -> int:
    """How many of a queue's workflows have not ended."""
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT count(*) FROM dbos.workflow_status WHERE queue_name = %s AND status <> 'SUCCESS'", (queue,)
        ).fetchone()
    assert row is not None
    return int(row[0])
