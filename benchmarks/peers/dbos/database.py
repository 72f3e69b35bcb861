"""The database of a run, its counters, and the configuration of DBOS for it."""

import importlib.metadata
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from dbos import DBOSConfig

#: The version of DBOS.
VERSION = importlib.metadata.version("dbos")


def print_result(**result: object) -> None:
    """Prints a result as a line of JSON."""
    print(json.dumps({"peer": "dbos", **result}), flush=True)


@contextmanager
def create_database(server: str) -> Iterator[str]:
    """Creates a database on the server, yields its URL, and drops it at the end of the block."""
    name = f"stepfast_peer_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        address, _, query = server.partition("?")
        _, _, location = address.partition("://")
        try:
            yield f"postgresql://{location.split('/')[0]}/{name}" + (f"?{query}" if query else "")
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def make_config(url: str, executor_id: str) -> DBOSConfig:
    """Returns a configuration with DBOS's defaults, except for its log level.

    All processes run the same code, so they have the same application version.
    """
    return {
        "name": "stepfast-peer",
        "system_database_url": url,
        "executor_id": executor_id,
        "application_version": "1",
        "log_level": "ERROR",
    }


def read_settings(url: str) -> dict[str, object]:
    """Returns the version of the server, and the settings that decide when a commit is durable."""
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit')"
        ).fetchone()
    assert row is not None
    return {"postgres": row[0], "fsync": row[1], "synchronous_commit": row[2]}


def read_log_counters(url: str) -> tuple[int, int]:
    """Returns the number of bytes that the server has written to its log, and the number of flushes of the log."""
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint, wal_sync FROM pg_stat_wal"
        ).fetchone()
    assert row is not None
    return row[0], row[1]


def count_unfinished(url: str, queue: str) -> int:
    """Returns the number of workflows in the queue that have not ended."""
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT count(*) FROM dbos.workflow_status WHERE queue_name = %s AND status <> 'SUCCESS'", (queue,)
        ).fetchone()
    assert row is not None
    return int(row[0])
