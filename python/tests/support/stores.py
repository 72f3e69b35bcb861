"""Stores for tests, on the Postgres server that runs beside them."""

import contextlib
import os
import subprocess
import uuid
from collections.abc import Iterator

#: The URL of the server, None without one.
POSTGRES_URL = os.environ.get("STEPFAST_TEST_POSTGRES_URL")


def fresh_schema() -> str:
    """Returns the URL of a store that does not exist yet, in a schema of the server's database.

    The schema is not dropped. A file system that has just deleted thousands of files creates others more
    slowly.
    """
    return f"{_server_url()}?schema={_fresh_name()}"


@contextlib.contextmanager
def postgres_database() -> Iterator[str]:
    """Creates an empty database and yields its URL. The end drops it, or the server's disk would fill up."""
    name = _fresh_name()
    psql = ["psql", "--quiet", _server_url(), "--command"]
    subprocess.run([*psql, f"CREATE DATABASE {name}"], check=True)
    try:
        yield _server_url().rsplit("/", 1)[0] + f"/{name}"
    finally:
        subprocess.run([*psql, f"DROP DATABASE {name} WITH (FORCE)"], check=False)


def _fresh_name() -> str:
    return f"python_{uuid.uuid4().hex[:12]}"


def _server_url() -> str:
    assert POSTGRES_URL is not None, (
        "these tests need a Postgres server: run them by `make test`, or by tests/with-postgres"
    )
    return POSTGRES_URL
