"""Fixtures that many tests share: empty stores, and the program `stepfast`."""

import os
import pathlib
import subprocess
from collections.abc import Iterator

import pytest
from repository import ROOT
from stores import fresh_schema, postgres_database


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> str:
    """The URL of an empty store."""
    return fresh_schema() if request.param == "postgres" else f"sqlite:{tmp_path}/test.db"


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[str]:
    """The URL of an empty store in a database of its own, for tests that also connect without an engine."""
    if request.param == "sqlite":
        yield f"sqlite:{tmp_path}/test.db"
        return
    with postgres_database() as url:
        yield url


@pytest.fixture
def sqlite_url(tmp_path: pathlib.Path) -> str:
    """The URL of an empty SQLite store."""
    return f"sqlite:{tmp_path}/test.db"


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """The URL of an empty store in a database of its own on Postgres."""
    with postgres_database() as url:
        yield url


@pytest.fixture(scope="session")
def program() -> pathlib.Path:
    """The program `stepfast`, as `cargo test --workspace` builds it, so that nothing is built twice."""
    command = ["cargo", "build", "--quiet", "--workspace", "--examples", "--bin", "stepfast"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=1200)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return target.absolute() / "debug" / "stepfast"
