"""Stores for tests: SQLite, and Postgres where the tests run beside a server."""

import os
import pathlib
import uuid

import pytest

POSTGRES = os.environ.get("STEPFAST_TEST_POSTGRES_URL")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> str:
    """The URL of an empty store."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/test.db"
    if POSTGRES is None:
        pytest.fail("these tests need a Postgres server: run them by `make test`, or by tests/with-postgres")
    return database(POSTGRES)


def database(url: str) -> str:
    """A database of its own on the server."""
    import subprocess

    name = f"python_{uuid.uuid4().hex[:12]}"
    subprocess.run(["psql", "--quiet", url, "--command", f"CREATE DATABASE {name}"], check=True)
    return url.rsplit("/", 1)[0] + f"/{name}"
