"""Environments of engines: web servers, test frameworks, notebooks and other event loops."""

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


def open_client(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=HANG_TIMEOUT)


# ---- web servers -------------------------------------------------------------------------------------------


def test_asgi_server_runs_workflows_on_its_loop(url: str) -> None:
    with web_server("web_app:app", PROGRAMS, URL=url) as server, open_client(server.url) as http:
        with ThreadPoolExecutor(16) as callers:
            outputs_of_runs = list(callers.map(lambda n: http.post(f"/run/{n % 7}").json(), range(64)))
            assert outputs_of_runs == [list(range(n % 7)) for n in range(64)]
            ids = list(callers.map(lambda n: http.post(f"/start/{n % 7}").json(), range(64)))
            outputs = list(callers.map(lambda id: http.get(f"/result/{id}").json(), ids))
            assert outputs == [list(range(n % 7)) for n in range(64)]
        assert http.post("/run-in-threads/2").json() == [[0, False], [1, False]]
        server.send_signal(signal.SIGTERM)
        assert server.wait_for_end() in (0, -signal.SIGTERM), server.log
        assert "Traceback" not in server.log, server.log


def test_terminated_server_requeues_executions(url: str) -> None:
    with web_server("web_app:app", PROGRAMS, URL=url) as server, open_client(server.url) as http:
        assert http.post("/begin/requeued").json() == "requeued"
        pid = http.get("/pid").json()
        server.send_signal(signal.SIGTERM)
        assert server.wait_for_end() in (0, -signal.SIGTERM), server.log
        assert "Traceback" not in server.log, server.log
    with web_server("web_app:app", PROGRAMS, URL=url) as server, open_client(server.url) as http:
        # the second server continues the execution of the first
        assert http.post("/wait/requeued").json() == http.get("/pid").json() != pid


def test_wsgi_server_runs_workflows_in_its_threads(url: str) -> None:
    with web_server("web_app:sync_app", PROGRAMS, URL=url) as server, open_client(server.url) as http:
        with ThreadPoolExecutor(16) as callers:
            outputs_of_runs = list(callers.map(lambda n: http.post(f"/run/{n % 5}").json(), range(64)))
        assert outputs_of_runs == [[[i, False] for i in range(n % 5)] for n in range(64)]
        server.send_signal(signal.SIGINT)
        assert server.wait_for_end() in (0, -signal.SIGINT), server.log
        assert "Traceback" not in server.log, server.log


def test_server_with_several_workers_shares_executions(url: str) -> None:
    with (
        web_server("web_app:app", PROGRAMS, workers=2, URL=url) as server,
        open_client(server.url) as http,
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
async def return_number(n: int) -> int:
    return n

@workflow
async def returns_numbers(n: int) -> list[int]:
    await sleep(0.001)
    return await asyncio.gather(*[return_number(i) for i in range(n)])
"""

PYTEST_ASYNCIO_TESTS = """
import pytest_asyncio

@pytest_asyncio.fixture
async def engine(tmp_path):
    async with AsyncEngine(f"sqlite:{tmp_path}/test.db") as engine:
        yield engine

@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_engine():
    async with AsyncEngine("memory:") as engine:
        yield engine

async def test_run(engine):
    assert await engine.run(returns_numbers, 3) == [0, 1, 2]

async def test_start(engine):
    assert await (await engine.start(returns_numbers, 4)) == [0, 1, 2, 3]

@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("n", [1, 2])
async def test_engine_is_shared(module_engine, n):
    assert await module_engine.run(returns_numbers, n) == list(range(n))
    assert await module_engine.count() == n

async def test_other_loop_is_refused(module_engine):
    with pytest.raises(InvalidArgument, match="event loop on which it was opened"):
        await module_engine.run(returns_numbers, 1)
"""

ANYIO_TESTS = """
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
    assert await engine.run(returns_numbers, 3) == [0, 1, 2]

async def test_start(engine):
    assert await (await engine.start(returns_numbers, 4)) == [0, 1, 2, 3]

async def test_task_group(engine):
    outputs = []

    async def run(n):
        outputs.append(await engine.run(returns_numbers, n))

    async with anyio.create_task_group() as group:
        for n in range(3):
            group.start_soon(run, n)
    assert sorted(outputs) == [[], [0], [0, 1]]

async def test_cancel_scope(engine):
    with anyio.move_on_after(0.01) as scope:
        handle = await engine.start(sleeps_one_hour.options(workflow_id="a"))
        await handle
    assert scope.cancelled_caught
    assert await handle.status() in ("running", "waiting")

@workflow
async def sleeps_one_hour() -> None:
    await sleep(3600)
"""


def run_pytest(folder: pathlib.Path, source: str, plugin: str) -> "subprocess.CompletedProcess[str]":
    """Runs pytest with a plugin on the tests of a source. Warnings are errors."""
    (folder / "test_workflows.py").write_text(WORKFLOWS + source)
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


def test_engine_works_with_pytest_asyncio(tmp_path: pathlib.Path) -> None:
    process = run_pytest(tmp_path, PYTEST_ASYNCIO_TESTS, "asyncio")
    assert process.returncode == 0, process.stdout + process.stderr
    assert "5 passed" in process.stdout


def test_engine_works_with_anyio_on_asyncio(tmp_path: pathlib.Path) -> None:
    process = run_pytest(tmp_path, ANYIO_TESTS.replace("BACKEND", "'asyncio'"), "anyio")
    assert process.returncode == 0, process.stdout + process.stderr
    assert "4 passed" in process.stdout


def test_anyio_on_trio_fails_with_reason(tmp_path: pathlib.Path) -> None:
    process = run_pytest(tmp_path, ANYIO_TESTS.replace("BACKEND", "'trio'"), "anyio")
    assert process.returncode == 1
    assert "4 errors" in process.stdout
    assert "an AsyncEngine needs a running event loop of asyncio (trio has another kind)" in process.stdout


# ---- notebooks ---------------------------------------------------------------------------------------------

DEFINITIONS = """
from stepfast import AsyncEngine, Engine, step, workflow

@step
def return_version() -> str:
    return "first"

@workflow
def returns_version() -> str:
    return return_version()

@workflow
async def returns_version_async() -> str:
    return "first"
"""
CHANGED_DEFINITIONS = DEFINITIONS.replace('"first"', '"second"')

CELLS = [
    DEFINITIONS,
    "engine = Engine(URL)",
    "engine.run(returns_version)",
    # the same cell again
    DEFINITIONS,
    "engine.run(returns_version), engine.start(returns_version).result()",
    # the same cell after an edit
    CHANGED_DEFINITIONS,
    "engine.run(returns_version), engine.start(returns_version).result()",
    "engine.close()",
    "engine = Engine(URL); engine.run(returns_version)",
    "async_engine = await AsyncEngine(URL).open()",
    "await async_engine.run(returns_version_async), await async_engine.run(returns_version)",
    "handle = await async_engine.start(returns_version_async); await handle",
    DEFINITIONS,
    "import asyncio; await asyncio.gather(*[async_engine.run(returns_version_async) for _ in range(3)])",
    "await async_engine.close()",
    # the kernel ends while engines are open
    "async_engine = await AsyncEngine(URL).open(); await async_engine.run(returns_version_async)",
]
EXPECTED_OUTPUTS = {
    2: "'first'",
    4: "('first', 'first')",
    6: "('second', 'second')",
    8: "'second'",
    10: "('second', 'second')",
    11: "'second'",
    13: "['first', 'first', 'first']",
    15: "'first'",
}


def test_notebook_redefines_and_runs_workflows(url: str, tmp_path: pathlib.Path) -> None:
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(cell.replace("URL", repr(url))) for cell in CELLS]
    NotebookClient(
        notebook, timeout=HANG_TIMEOUT, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = {
        i: output.data["text/plain"]
        for i, cell in enumerate(notebook.cells)
        for output in cell.outputs
        if output.output_type == "execute_result"
    }
    assert outputs == EXPECTED_OUTPUTS
    # no cell writes to stderr
    assert not any(output.output_type == "stream" for cell in notebook.cells for output in cell.outputs)


# ---- event loops -------------------------------------------------------------------------------------------

ASYNCIO_WORKFLOWS = [
    asyncio_program.calls_in_sequence,
    asyncio_program.nests_gathers,
    asyncio_program.groups_tasks,
    asyncio_program.runs_worker_pool,
    asyncio_program.takes_as_completed,
    asyncio_program.waits_for_first_completed,
    asyncio_program.waits_for_event,
    asyncio_program.sleeps_in_branches,
]


def make_eager_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
    return loop


def make_eager_uvloop() -> asyncio.AbstractEventLoop:
    loop = uvloop.new_event_loop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
    return loop


LOOP_FACTORIES: list[Callable[[], asyncio.AbstractEventLoop]] = [uvloop.new_event_loop]
if sys.version_info >= (3, 12):
    LOOP_FACTORIES += [make_eager_loop]
    # uvloop passes the factory an argument that Python accepts only from 3.13.3 on
    if not (3, 13) <= sys.version_info < (3, 13, 3):
        LOOP_FACTORIES += [make_eager_uvloop]


@pytest.mark.parametrize("make_loop", LOOP_FACTORIES, ids=lambda make: make.__name__)
@pytest.mark.parametrize("program", ASYNCIO_WORKFLOWS, ids=lambda program: program.name)
@pytest.mark.parametrize("suspend_after", [5.0, 0.001])
def test_other_kinds_of_loops_run_workflows(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
    program: Workflow[[int], object],
    suspend_after: float,
    tmp_path: pathlib.Path,
) -> None:
    async def main() -> None:
        async with AsyncEngine(f"sqlite:{tmp_path}/test.db", suspend_after=suspend_after) as engine:
            expected = asyncio_program.expected_output(program.name)
            assert await engine.run(program, asyncio_program.ITEM_COUNT) == expected
            handles = [await engine.start(program, asyncio_program.ITEM_COUNT) for _ in range(3)]
            assert await engine.results(handles) == [expected] * 3

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())


def test_version_equals_metadata_of_package() -> None:
    assert stepfast.__version__ == importlib.metadata.version("stepfast")
