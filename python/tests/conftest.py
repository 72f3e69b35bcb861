"""Stores for tests: SQLite, and Postgres where the tests run beside a server."""

import os
import pathlib
import subprocess
import uuid

import pytest

ROOT = pathlib.Path(__file__).parents[2]
POSTGRES = os.environ.get("STEPFAST_TEST_POSTGRES_URL")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> str:
    """The URL of an empty store."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/test.db"
    if POSTGRES is None:
        pytest.fail("these tests need a Postgres server: run them by `make test`, or by tests/with-postgres")
    return database(POSTGRES)


@pytest.fixture
def postgres_url() -> str:
    """The URL of an empty store on Postgres."""
    if POSTGRES is None:
        pytest.fail("these tests need a Postgres server: run them by `make test`, or by tests/with-postgres")
    return database(POSTGRES)


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
