"""Databases for tests, on the Postgres server that runs beside them."""

import contextlib
import os
import subprocess
import uuid
from collections.abc import Iterator

#: The URL of the server, None without one.
POSTGRES_URL = os.environ.get("STEPFAST_TEST_POSTGRES_URL")


@contextlib.contextmanager
def postgres_database() -> Iterator[str]:
    """Creates an empty database and yields its URL. The end drops it, or the server's disk would fill up."""
    assert POSTGRES_URL is not None, (
        "these tests need a Postgres server: run them by `make test`, or by tests/with-postgres"
    )
    name = f"python_{uuid.uuid4().hex[:12]}"
    psql = ["psql", "--quiet", POSTGRES_URL, "--command"]
    subprocess.run([*psql, f"CREATE DATABASE {name}"], check=True)
    try:
        yield POSTGRES_URL.rsplit("/", 1)[0] + f"/{name}"
    finally:
        subprocess.run([*psql, f"DROP DATABASE {name} WITH (FORCE)"], check=False)
