"""Workers and clients: several processes on one store, drains by signals, and overviews."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from repository import PROGRAMS
from watched_process import HANG_TIMEOUT

from stepfast import (
    AsyncClient,
    Client,
    Conflict,
    Engine,
    InvalidArgument,
    RemoteWorkflow,
    Unclaimable,
    WorkflowCancelled,
    step,
    workflow,
)

WORKER_PROGRAM = str(PROGRAMS / "worker_program.py")
IN_ALL_MODES = pytest.mark.parametrize("mode", [[], ["async"]], ids=["threads", "loop"])
BEGUN_BODIES, IS_GATE_OPEN = threading.Semaphore(0), threading.Event()


@workflow
def double_for_client(n: int) -> int:
    return 2 * n


@step
def passes_gate(n: int) -> int:
    BEGUN_BODIES.release()
    assert IS_GATE_OPEN.wait(HANG_TIMEOUT)
    return n


@workflow
def holds_a_thread(n: int) -> int:
    return passes_gate(n)


class WorkerProcess:
    """A process that runs `worker_program.py`, and the events that the process reports."""

    def __init__(self, url: str, pipe: pathlib.Path, grace: float, mode: list[str]) -> None:
        self.pipe = pipe
        self.process = subprocess.Popen([sys.executable, WORKER_PROGRAM, url, str(pipe), str(grace), *mode])
        self.events: list[str] = []
        self.changed = threading.Condition()
        self.reader = threading.Thread(target=self._read_events)
        self.reader.start()

    def _read_events(self) -> None:
        with open(self.pipe) as lines:
            for line in lines:
                with self.changed:
                    self.events.append(line.split()[1])
                    self.changed.notify_all()

    def wait_for_event(self, event: str, times: int = 1) -> None:
        """Waits until the process has reported the event this number of times."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.events.count(event) >= times, HANG_TIMEOUT), self.events

    def send_signal(self, signal_number: signal.Signals) -> None:
        self.process.send_signal(signal_number)

    def wait_for_end(self) -> int:
        return self.process.wait(HANG_TIMEOUT)


@contextlib.contextmanager
def start_worker(url: str, pipe: pathlib.Path, grace: float, mode: list[str]) -> Iterator[WorkerProcess]:
    """Starts a worker and waits until its engine is open. The end kills the process."""
    os.mkfifo(pipe)
    # this writer keeps the pipe open: the reader neither waits for the first writer nor ends after the last
    descriptor = os.open(pipe, os.O_RDWR)
    worker = WorkerProcess(url, pipe, grace, mode)
    try:
        worker.wait_for_event("open")
        yield worker
    finally:
        worker.process.kill()
        worker.process.wait()
        os.close(descriptor)
        worker.reader.join(HANG_TIMEOUT)


def blocking_workflow(mode: list[str]) -> RemoteWorkflow[[str], int]:
    """Returns the workflow of the worker's program that waits for a file."""
    return RemoteWorkflow("worker_waits_on_loop" if mode else "worker_waits")


@IN_ALL_MODES
@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_running_execution_ends_before_its_worker(
    url: str, tmp_path: pathlib.Path, mode: list[str], signal_number: signal.Signals
) -> None:
    flag = tmp_path / "flag"
    with Client(url) as client, start_worker(url, tmp_path / "pipe", 1000, mode) as worker:
        handle = client.start(blocking_workflow(mode), str(flag))
        worker.wait_for_event("body")
        worker.send_signal(signal_number)
        flag.touch()
        assert handle.result(HANG_TIMEOUT) == worker.process.pid
        worker.wait_for_event("drained")
        assert worker.wait_for_end() == 0


@IN_ALL_MODES
def test_signal_to_another_thread_ends_worker(url: str, tmp_path: pathlib.Path, mode: list[str]) -> None:
    with Client(url) as client, start_worker(url, tmp_path / "pipe", 1000, mode) as worker:
        name = "worker_ends_itself_on_loop" if mode else "worker_ends_itself"
        handle = client.start(RemoteWorkflow[[], int](name))
        assert handle.result(HANG_TIMEOUT) == worker.process.pid
        worker.wait_for_event("drained")
        assert worker.wait_for_end() == 0


@IN_ALL_MODES
def test_execution_beyond_grace_runs_on_another_worker(
    url: str, tmp_path: pathlib.Path, mode: list[str]
) -> None:
    flag = tmp_path / "flag"
    with Client(url) as client, start_worker(url, tmp_path / "first", 0, mode) as first:
        handle = client.start(blocking_workflow(mode), str(flag))
        first.wait_for_event("body")
        with start_worker(url, tmp_path / "second", 0, mode) as second:
            first.send_signal(signal.SIGTERM)
            second.wait_for_event("body")
            flag.touch()
            assert handle.result(HANG_TIMEOUT) == second.process.pid
            assert client.show(handle.workflow_id).execution.recoveries == 0
            assert first.wait_for_end() == 0


@IN_ALL_MODES
def test_second_signal_ends_worker_at_once(url: str, tmp_path: pathlib.Path, mode: list[str]) -> None:
    flag = tmp_path / "flag"
    with Client(url) as client, start_worker(url, tmp_path / "pipe", 1000, mode) as worker:
        handle = client.start(blocking_workflow(mode), str(flag))
        worker.wait_for_event("body")
        worker.send_signal(signal.SIGTERM)
        worker.send_signal(signal.SIGTERM)
        # the system may merge two signals into one, so further signals follow
        while worker.process.poll() is None and handle.status() == "running":
            worker.send_signal(signal.SIGTERM)
        flag.touch()
        assert worker.wait_for_end() == 0
        assert handle.status() == "queued"


@IN_ALL_MODES
def test_cancel_reaches_worker_without_writes(url: str, tmp_path: pathlib.Path, mode: list[str]) -> None:
    with Client(url) as client, start_worker(url, tmp_path / "pipe", 0, mode) as worker:
        handle = client.start(blocking_workflow(mode), str(tmp_path / "never"))
        worker.wait_for_event("body")
        assert handle.cancel()
        with pytest.raises(WorkflowCancelled):
            handle.result(HANG_TIMEOUT)


@IN_ALL_MODES
def test_worker_ends_before_incompatible_migration(
    database_url: str, tmp_path: pathlib.Path, mode: list[str]
) -> None:
    flag = tmp_path / "flag"
    with start_worker(database_url, tmp_path / "pipe", 1000, mode) as worker:
        with Client(database_url) as client:
            client.start(blocking_workflow(mode).options(workflow_id="ends"), str(flag))
        worker.wait_for_event("body")
        # an incompatible migration makes this change
        run_script = "import sys, sqlite3; sqlite3.connect(sys.argv[1]).executescript(sys.argv[2])"
        update = "UPDATE {}shard SET oldest_engine = {};"
        if database_url.startswith("sqlite"):
            command = [sys.executable, "-c", run_script, database_url.removeprefix("sqlite:")]
            newer, current = update.format("", 99), update.format("", 3)
        else:
            command = ["psql", "--quiet", database_url, "--command"]
            newer, current = update.format("stepfast.", 99), update.format("stepfast.", 4)
        subprocess.run([*command, newer], check=True)
        flag.touch()
        worker.wait_for_event("SF-0014")
        assert worker.wait_for_end() == 1
        subprocess.run([*command, current], check=True)
        with Client(database_url) as client:
            assert client.get("ends").result(HANG_TIMEOUT) == worker.process.pid


def test_work_is_refused_outside_main_thread(url: str) -> None:
    raised: list[BaseException] = []

    def work(engine: Engine) -> None:
        try:
            engine.work()
        except InvalidArgument as error:
            raised.append(error)

    with Engine(url) as engine:
        thread = threading.Thread(target=work, args=(engine,))
        thread.start()
        thread.join(HANG_TIMEOUT)
    assert "main thread" in str(raised[0])


def test_engine_runs_executions_of_client(url: str) -> None:
    with Client(url) as client:
        handle = client.start(double_for_client.options(workflow_id="four"), 4)
        assert handle.status() == "queued"
        assert (
            client.start(RemoteWorkflow("double_for_client").options(workflow_id="four"), 4).workflow_id
            == "four"
        )
        with pytest.raises(Conflict):
            client.start(RemoteWorkflow("double_for_client").options(workflow_id="four"), 5)
        cancelled = client.start(RemoteWorkflow("double_for_client"), 5)
        cancelled.cancel()
        with Engine(url) as engine:
            assert handle.result(HANG_TIMEOUT) == 8
            assert client.run(RemoteWorkflow("double_for_client"), 6) == 12
            assert client.run(double_for_client, 7) == 14
            assert client.run(double_for_client.options(execution_timeout=60), 8) == 16
            assert engine.count() == client.count() == 5
        with pytest.raises(WorkflowCancelled):
            cancelled.result()
        assert client.get("four").result() == 8


def test_async_client_waits_for_many_results(url: str) -> None:
    async def main() -> None:
        async with AsyncClient(url) as client:
            handles = [await client.start(double_for_client, n) for n in range(50)]
            named = await client.start(RemoteWorkflow("double_for_client"), 50)
            with Engine(url):
                outputs = await asyncio.gather(*(handle.result() for handle in [*handles, named]))
                assert outputs == [2 * n for n in range(51)]
                assert await client.run(RemoteWorkflow("double_for_client"), 3) == 6

    asyncio.run(asyncio.wait_for(main(), HANG_TIMEOUT))


def test_worker_claims_no_more_than_its_threads_can_run(url: str) -> None:
    IS_GATE_OPEN.clear()
    while BEGUN_BODIES.acquire(blocking=False):
        pass
    with Client(url) as client, contextlib.ExitStack() as workers:
        handles = client.start_many(holds_a_thread, [(n,) for n in range(20)])
        try:
            for worker_count in (1, 2):
                workers.enter_context(Engine(url, max_threads=2))
                for _ in range(2):
                    assert BEGUN_BODIES.acquire(timeout=HANG_TIMEOUT)
                # each worker claims for its threads, and the same number ahead
                assert client.count(status="running") <= 4 * worker_count
        finally:
            IS_GATE_OPEN.set()
        assert client.results(handles) == list(range(20))


@pytest.mark.parametrize("name", ["", 7, None, "a\nb"])
def test_client_refuses_invalid_workflow_names(url: str, name: object) -> None:
    with Client(url) as client, pytest.raises(InvalidArgument):
        client.start(name)  # type: ignore[call-overload]


def test_execution_is_pinned_to_version_of_its_worker(url: str) -> None:
    with Engine(url, app_version="1", max_running=1) as engine:
        assert engine.run(double_for_client, 1) == 2
    with Client(url) as client:
        unpinned = client.start(double_for_client, 2)
        with Engine(url, app_version="2"):
            assert unpinned.result(HANG_TIMEOUT) == 4
        (pinned,) = client.list(app_version="1")
        assert (pinned.app_version, pinned.status) == ("1", "completed")
        assert client.show(unpinned.workflow_id).execution.app_version is None
        assert (client.count(app_version="1"), client.count(app_version="2")) == (1, 0)
    for version, message in [("", "empty"), (7, "text"), ("a\nb", "printable"), ("x" * 256, "255")]:
        with pytest.raises(InvalidArgument, match=message):
            Engine(url, app_version=version)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="max_recoveries"):
        Engine(url, max_recoveries=-1)


def test_overview_lists_workers_and_unclaimable_executions(url: str) -> None:
    with Client(url) as client:
        for name in ["survey_unknown", "survey_unknown", "double_for_client"]:
            client.start(RemoteWorkflow(name), 1)
        (own,) = client.workers().workers
        assert (own.is_alive, own.is_client, own.pid, own.host) == (
            True,
            True,
            os.getpid(),
            socket.gethostname(),
        )
        assert client.workers().unclaimable == (
            Unclaimable("double_for_client", None, 1, False),
            Unclaimable("survey_unknown", None, 2, False),
        )
        with Engine(url, app_version="7") as engine:
            overview = engine.workers()
            _, worker = overview.workers
            assert (worker.app_version, worker.is_client, "double_for_client" in worker.workflows) == (
                "7",
                False,
                True,
            )
            assert worker.registered_at >= own.registered_at
            assert (worker.lease_expires_at is None) == url.startswith("sqlite:")
            assert [it.workflow for it in overview.unclaimable] == ["survey_unknown"]

        async def main() -> None:
            async with AsyncClient(url) as other:
                assert (await other.workers()).unclaimable == client.workers().unclaimable

        asyncio.run(main())
