"""Stores for tests: SQLite, and Postgres where the tests run beside a server."""

import contextlib
import os
import pathlib
import subprocess
import uuid
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parents[2]
POSTGRES = os.environ.get("STEPFAST_TEST_POSTGRES_URL")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[str]:
    """The URL of an empty store."""
    if request.param == "sqlite":
        yield f"sqlite:{tmp_path}/test.db"
        return
    if POSTGRES is None:
        pytest.fail("these tests need a Postgres server: run them by `make test`, or by tests/with-postgres")
    with dropped(database(POSTGRES)) as made:
        yield made


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """The URL of an empty store on Postgres."""
    if POSTGRES is None:
        pytest.fail("these tests need a Postgres server: run them by `make test`, or by tests/with-postgres")
    with dropped(database(POSTGRES)) as made:
        yield made


@contextlib.contextmanager
def dropped(url: str) -> Iterator[str]:
    """Drops a database in the end: of those of all tests the server's disk would be full."""
    try:
        yield url
    finally:
        assert POSTGRES is not None
        drop = f"DROP DATABASE {url.rsplit('/', 1)[1]} WITH (FORCE)"
        subprocess.run(["psql", "--quiet", POSTGRES, "--command", drop], check=False)


def database(url: str) -> str:
    """A database of its own on the server."""
    name = f"python_{uuid.uuid4().hex[:12]}"
    subprocess.run(["psql", "--quiet", url, "--command", f"CREATE DATABASE {name}"], check=True)
    return url.rsplit("/", 1)[0] + f"/{name}"


@pytest.fixture(scope="session")
def program() -> pathlib.Path:
    """The program `stepfast`, as `cargo test --workspace` builds it, so that nothing is built twice."""
    command = ["cargo", "build", "--quiet", "--workspace", "--examples", "--bin", "stepfast"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=1200)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return target.absolute() / "debug" / "stepfast"
