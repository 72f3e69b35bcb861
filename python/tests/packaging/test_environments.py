"""The programs that engines live in: web servers, test frameworks, notebooks, other event loops."""

import asyncio
import importlib.metadata
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import asyncio_program
import httpx
import nbformat
import pytest
import uvloop
from nbclient import NotebookClient
from repository import PROGRAMS
from watched_process import HANG_TIMEOUT
from web_servers import web_server

import stepfast
from stepfast import AsyncEngine, Workflow


def client(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=HANG_TIMEOUT)


# ---- web servers -------------------------------------------------------------------------------------------


def test_a_server_with_a_loop(url: str) -> None:
    with web_server("web_app:app", PROGRAMS, URL=url) as server, client(server.url) as http:
        with ThreadPoolExecutor(16) as callers:
            ran = list(callers.map(lambda n: http.post(f"/run/{n % 7}").json(), range(64)))
            assert ran == [list(range(n % 7)) for n in range(64)]
            ids = list(callers.map(lambda n: http.post(f"/start/{n % 7}").json(), range(64)))
            outputs = list(callers.map(lambda id: http.get(f"/result/{id}").json(), ids))
            assert outputs == [list(range(n % 7)) for n in range(64)]
        assert http.post("/run-in-threads/2").json() == [[0, False], [1, False]]
        server.send_signal(signal.SIGTERM)
        assert server.wait_for_end() in (0, -signal.SIGTERM), server.log
        assert "Traceback" not in server.log, server.log


def test_a_server_that_is_told_to_end_hands_back(url: str) -> None:
    with web_server("web_app:app", PROGRAMS, URL=url) as server, client(server.url) as http:
        assert http.post("/begin/left").json() == "left"
        pid = http.get("/pid").json()
        server.send_signal(signal.SIGTERM)
        assert server.wait_for_end() in (0, -signal.SIGTERM), server.log
        assert "Traceback" not in server.log, server.log
    with web_server("web_app:app", PROGRAMS, URL=url) as server, client(server.url) as http:
        # it goes on with what was left
        assert http.post("/wait/left").json() == http.get("/pid").json() != pid


def test_a_server_with_threads(url: str) -> None:
    with web_server("web_app:sync_app", PROGRAMS, URL=url) as server, client(server.url) as http:
        with ThreadPoolExecutor(16) as callers:
            ran = list(callers.map(lambda n: http.post(f"/run/{n % 5}").json(), range(64)))
        assert ran == [[[i, False] for i in range(n % 5)] for n in range(64)]
        server.send_signal(signal.SIGINT)
        assert server.wait_for_end() in (0, -signal.SIGINT), server.log
        assert "Traceback" not in server.log, server.log


def test_a_server_with_several_workers(url: str) -> None:
    with (
        web_server("web_app:app", PROGRAMS, workers=2, URL=url) as server,
        client(server.url) as http,
        ThreadPoolExecutor(8) as callers,
    ):
        ids = list(callers.map(lambda n: http.post(f"/start/{n % 7}").json(), range(32)))
        outputs = list(callers.map(lambda id: http.get(f"/result/{id}").json(), ids))
        assert outputs == [list(range(n % 7)) for n in range(32)]
        server.send_signal(signal.SIGTERM)
        server.wait_for_end()
        assert "Traceback" not in server.log, server.log


# ---- test frameworks ---------------------------------------------------------------------------------------

WORKFLOWS = """
import asyncio

import pytest

from stepfast import AsyncEngine, InvalidArgument, sleep, step, workflow

@step
async def checked_step(n: int) -> int:
    return n

@workflow
async def checked_workflow(n: int) -> list[int]:
    await sleep(0.001)
    return await asyncio.gather(*[checked_step(i) for i in range(n)])
"""

WITH_PYTEST_ASYNCIO = """
import pytest_asyncio

@pytest_asyncio.fixture
async def engine(tmp_path):
    async with AsyncEngine(f"sqlite:{tmp_path}/test.db") as engine:
        yield engine

@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared():
    async with AsyncEngine("memory:") as engine:
        yield engine

async def test_run(engine):
    assert await engine.run(checked_workflow, 3) == [0, 1, 2]

async def test_start(engine):
    assert await (await engine.start(checked_workflow, 4)) == [0, 1, 2, 3]

@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("n", [1, 2])
async def test_shared(shared, n):
    assert await shared.run(checked_workflow, n) == list(range(n))
    assert await shared.count() == n

async def test_elsewhere(shared):
    with pytest.raises(InvalidArgument, match="event loop on which it was opened"):
        await shared.run(checked_workflow, 1)
"""

WITH_ANYIO = """
import anyio

pytestmark = pytest.mark.anyio

@pytest.fixture
def anyio_backend():
    return BACKEND

@pytest.fixture
async def engine(tmp_path):
    async with AsyncEngine(f"sqlite:{tmp_path}/test.db") as engine:
        yield engine

async def test_run(engine):
    assert await engine.run(checked_workflow, 3) == [0, 1, 2]

async def test_start(engine):
    assert await (await engine.start(checked_workflow, 4)) == [0, 1, 2, 3]

async def test_task_group(engine):
    outputs = []

    async def run(n):
        outputs.append(await engine.run(checked_workflow, n))

    async with anyio.create_task_group() as group:
        for n in range(3):
            group.start_soon(run, n)
    assert sorted(outputs) == [[], [0], [0, 1]]

async def test_cancel_scope(engine):
    with anyio.move_on_after(0.01) as scope:
        handle = await engine.start(sleeps_on.options(workflow_id="a"))
        await handle
    assert scope.cancelled_caught
    assert await handle.status() in ("running", "waiting")

@workflow
async def sleeps_on() -> None:
    await sleep(3600)
"""


def pytest_on(folder: pathlib.Path, source: str, plugin: str) -> "subprocess.CompletedProcess[str]":
    """Runs pytest with a plugin on some tests; warnings are errors."""
    (folder / "test_it.py").write_text(WORKFLOWS + source)
    options = "asyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    (folder / "pytest.ini").write_text(
        f"[pytest]\nfilterwarnings = error\n{options if plugin == 'asyncio' else ''}"
    )
    other = "anyio" if plugin == "asyncio" else "asyncio"
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", f"no:{other}", "--tb=short"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT,
    )


def test_pytest_asyncio(tmp_path: pathlib.Path) -> None:
    ended = pytest_on(tmp_path, WITH_PYTEST_ASYNCIO, "asyncio")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "5 passed" in ended.stdout


def test_anyio_on_asyncio(tmp_path: pathlib.Path) -> None:
    ended = pytest_on(tmp_path, WITH_ANYIO.replace("BACKEND", "'asyncio'"), "anyio")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "4 passed" in ended.stdout


def test_anyio_on_trio_says_what_is_needed(tmp_path: pathlib.Path) -> None:
    ended = pytest_on(tmp_path, WITH_ANYIO.replace("BACKEND", "'trio'"), "anyio")
    assert ended.returncode == 1
    assert "4 errors" in ended.stdout
    assert "an AsyncEngine needs a running event loop of asyncio (trio has another kind)" in ended.stdout


# ---- notebooks ---------------------------------------------------------------------------------------------

DEFINED = """
from stepfast import AsyncEngine, Engine, step, workflow

@step
def noted_step() -> str:
    return "first"

@workflow
def noted() -> str:
    return noted_step()

@workflow
async def noted_async() -> str:
    return "first"
"""
DEFINED_AGAIN = DEFINED.replace('"first"', '"second"')

CELLS = [
    DEFINED,
    "engine = Engine(URL)",
    "engine.run(noted)",
    # the same cell again
    DEFINED,
    "engine.run(noted), engine.start(noted).result()",
    # and another time, after it was edited
    DEFINED_AGAIN,
    "engine.run(noted), engine.start(noted).result()",
    "engine.close()",
    "engine = Engine(URL); engine.run(noted)",
    "async_engine = await AsyncEngine(URL).open()",
    "await async_engine.run(noted_async), await async_engine.run(noted)",
    "handle = await async_engine.start(noted_async); await handle",
    DEFINED,
    "import asyncio; await asyncio.gather(*[async_engine.run(noted_async) for _ in range(3)])",
    "await async_engine.close()",
    # the kernel ends while engines are open
    "async_engine = await AsyncEngine(URL).open(); await async_engine.run(noted_async)",
]
SHOWN = {
    2: "'first'",
    4: "('first', 'first')",
    6: "('second', 'second')",
    8: "'second'",
    10: "('second', 'second')",
    11: "'second'",
    13: "['first', 'first', 'first']",
    15: "'first'",
}


def test_a_notebook(url: str, tmp_path: pathlib.Path) -> None:
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(cell.replace("URL", repr(url))) for cell in CELLS]
    NotebookClient(
        notebook, timeout=HANG_TIMEOUT, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown = {
        i: output.data["text/plain"]
        for i, cell in enumerate(notebook.cells)
        for output in cell.outputs
        if output.output_type == "execute_result"
    }
    assert shown == SHOWN
    # nothing was said on stderr
    assert not any(output.output_type == "stream" for cell in notebook.cells for output in cell.outputs)


# ---- event loops -------------------------------------------------------------------------------------------

SHAPES = [
    asyncio_program.in_a_row,
    asyncio_program.nested,
    asyncio_program.grouped,
    asyncio_program.pool,
    asyncio_program.as_they_come,
    asyncio_program.first_of,
    asyncio_program.gated,
    asyncio_program.naps,
]


def eager() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
    return loop


def eager_uvloop() -> asyncio.AbstractEventLoop:
    loop = uvloop.new_event_loop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
    return loop


LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [uvloop.new_event_loop]
if sys.version_info >= (3, 12):
    LOOPS += [eager]
    # in between they do not go together: uvloop hands the factory an argument that it takes from 3.13.3 on
    if not (3, 13) <= sys.version_info < (3, 13, 3):
        LOOPS += [eager_uvloop]


@pytest.mark.parametrize("make_loop", LOOPS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("program", SHAPES, ids=lambda program: program.name)
@pytest.mark.parametrize("suspend_after", [5.0, 0.001])
def test_a_loop_of_another_kind(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
    program: Workflow[[int], object],
    suspend_after: float,
    tmp_path: pathlib.Path,
) -> None:
    async def main() -> None:
        async with AsyncEngine(f"sqlite:{tmp_path}/test.db", suspend_after=suspend_after) as engine:
            wanted = asyncio_program.expected(program.name)
            assert await engine.run(program, asyncio_program.N) == wanted
            handles = [await engine.start(program, asyncio_program.N) for _ in range(3)]
            assert await engine.results(handles) == [wanted] * 3

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())


def test_the_version_is_that_of_the_package() -> None:
    assert stepfast.__version__ == importlib.metadata.version("stepfast")
