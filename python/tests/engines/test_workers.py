"""Workers and clients: several processes on one store, and those that are told to end."""

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

PROGRAM = str(PROGRAMS / "worker_program.py")
MODES = pytest.mark.parametrize("mode", [[], ["async"]], ids=["threads", "loop"])
BEGUN, OPEN = threading.Semaphore(0), threading.Event()


@workflow
def client_doubles(n: int) -> int:
    return 2 * n


@step
def passes_gate(n: int) -> int:
    BEGUN.release()
    assert OPEN.wait(HANG_TIMEOUT)
    return n


@workflow
def holds_a_thread(n: int) -> int:
    return passes_gate(n)


class Worker:
    """A process that works, and the lines that it tells."""

    def __init__(self, url: str, pipe: pathlib.Path, grace: float, mode: list[str]) -> None:
        self.pipe = pipe
        self.program = subprocess.Popen([sys.executable, PROGRAM, url, str(pipe), str(grace), *mode])
        self.heard: list[str] = []
        self.news = threading.Condition()
        self.listening = threading.Thread(target=self._listen)
        self.listening.start()

    def _listen(self) -> None:
        with open(self.pipe) as lines:
            for line in lines:
                with self.news:
                    self.heard.append(line.split()[1])
                    self.news.notify_all()

    def until(self, what: str, times: int = 1) -> None:
        with self.news:
            assert self.news.wait_for(lambda: self.heard.count(what) >= times, HANG_TIMEOUT), self.heard

    def send_signal(self, number: signal.Signals) -> None:
        self.program.send_signal(number)

    def wait_for_end(self) -> int:
        return self.program.wait(HANG_TIMEOUT)


@contextlib.contextmanager
def worker(url: str, pipe: pathlib.Path, grace: float, mode: list[str]) -> Iterator[Worker]:
    os.mkfifo(pipe)
    # a writer of our own: who reads does not wait for the first, nor end with the last
    held = os.open(pipe, os.O_RDWR)
    working = Worker(url, pipe, grace, mode)
    try:
        working.until("open")
        yield working
    finally:
        working.program.kill()
        working.program.wait()
        os.close(held)
        working.listening.join(HANG_TIMEOUT)


def waits_of(mode: list[str]) -> RemoteWorkflow[[str], int]:
    return RemoteWorkflow("worker_waits_on_loop" if mode else "worker_waits")


@MODES
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_runs_ends_before_the_worker(
    url: str, tmp_path: pathlib.Path, mode: list[str], number: signal.Signals
) -> None:
    flag = tmp_path / "flag"
    with Client(url) as client, worker(url, tmp_path / "pipe", 1000, mode) as one:
        handle = client.start(waits_of(mode), str(flag))
        one.until("body")
        one.send_signal(number)
        flag.touch()
        assert handle.result(HANG_TIMEOUT) == one.program.pid
        one.until("drained")
        assert one.wait_for_end() == 0


@MODES
def test_what_does_not_end_in_time_runs_elsewhere(url: str, tmp_path: pathlib.Path, mode: list[str]) -> None:
    flag = tmp_path / "flag"
    with Client(url) as client, worker(url, tmp_path / "one", 0, mode) as one:
        handle = client.start(waits_of(mode), str(flag))
        one.until("body")
        with worker(url, tmp_path / "two", 0, mode) as two:
            one.send_signal(signal.SIGTERM)
            two.until("body")
            flag.touch()
            assert handle.result(HANG_TIMEOUT) == two.program.pid
            assert client.show(handle.workflow_id).execution.recoveries == 0
            assert one.wait_for_end() == 0


@MODES
def test_who_is_told_again_ends_at_once(url: str, tmp_path: pathlib.Path, mode: list[str]) -> None:
    flag = tmp_path / "flag"
    with Client(url) as client, worker(url, tmp_path / "pipe", 1000, mode) as one:
        handle = client.start(waits_of(mode), str(flag))
        one.until("body")
        one.send_signal(signal.SIGTERM)
        one.send_signal(signal.SIGTERM)
        # one signal may be told as one with the other: then a third is a second
        while one.program.poll() is None and handle.status() == "running":
            one.send_signal(signal.SIGTERM)
        flag.touch()
        assert one.wait_for_end() == 0
        assert handle.status() == "queued"


@MODES
def test_a_worker_that_writes_nothing_hears_of_a_cancel(
    url: str, tmp_path: pathlib.Path, mode: list[str]
) -> None:
    with Client(url) as client, worker(url, tmp_path / "pipe", 0, mode) as one:
        handle = client.start(waits_of(mode), str(tmp_path / "never"))
        one.until("body")
        assert handle.cancel()
        with pytest.raises(WorkflowCancelled):
            handle.result(HANG_TIMEOUT)


@MODES
def test_a_worker_that_is_too_old_for_the_coming_schema_ends_by_itself(
    url: str, tmp_path: pathlib.Path, mode: list[str]
) -> None:
    flag = tmp_path / "flag"
    with worker(url, tmp_path / "pipe", 1000, mode) as one:
        with Client(url) as client:
            client.start(waits_of(mode).options(workflow_id="ends"), str(flag))
        one.until("body")
        # as a migration asks
        ask = "import sys, sqlite3; sqlite3.connect(sys.argv[1]).executescript(sys.argv[2])"
        update = "UPDATE {}shard SET oldest_engine = {};"
        if url.startswith("sqlite"):
            run = [sys.executable, "-c", ask, url.removeprefix("sqlite:")]
            newer, own = update.format("", 99), update.format("", 3)
        else:
            run = ["psql", "--quiet", url, "--command"]
            newer, own = update.format("stepfast.", 99), update.format("stepfast.", 4)
        subprocess.run([*run, newer], check=True)
        flag.touch()
        one.until("SF-0014")
        assert one.wait_for_end() == 1
        subprocess.run([*run, own], check=True)
        with Client(url) as client:
            assert client.get("ends").result(HANG_TIMEOUT) == one.program.pid


def test_only_the_main_thread_works(url: str) -> None:
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


def test_a_client_starts_what_an_engine_runs(url: str) -> None:
    with Client(url) as client:
        handle = client.start(client_doubles.options(workflow_id="four"), 4)
        assert handle.status() == "queued"
        assert (
            client.start(RemoteWorkflow("client_doubles").options(workflow_id="four"), 4).workflow_id
            == "four"
        )
        with pytest.raises(Conflict):
            client.start(RemoteWorkflow("client_doubles").options(workflow_id="four"), 5)
        late = client.start(RemoteWorkflow("client_doubles"), 5)
        late.cancel()
        with Engine(url) as engine:
            assert handle.result(HANG_TIMEOUT) == 8
            assert client.run(RemoteWorkflow("client_doubles"), 6) == 12
            assert client.run(client_doubles, 7) == 14
            assert client.run(client_doubles.options(execution_timeout=60), 8) == 16
            assert engine.count() == client.count() == 5
        with pytest.raises(WorkflowCancelled):
            late.result()
        assert client.get("four").result() == 8


def test_an_async_client_waits_for_many(url: str) -> None:
    async def main() -> None:
        async with AsyncClient(url) as client:
            handles = [await client.start(client_doubles, n) for n in range(50)]
            named = await client.start(RemoteWorkflow("client_doubles"), 50)
            with Engine(url):
                ends = await asyncio.gather(*(handle.result() for handle in [*handles, named]))
                assert ends == [2 * n for n in range(51)]
                assert await client.run(RemoteWorkflow("client_doubles"), 3) == 6

    asyncio.run(asyncio.wait_for(main(), HANG_TIMEOUT))


def test_a_worker_leaves_to_others_what_its_threads_cannot_run(url: str) -> None:
    OPEN.clear()
    while BEGUN.acquire(blocking=False):
        pass
    with Client(url) as client, contextlib.ExitStack() as workers:
        handles = client.start_many(holds_a_thread, [(n,) for n in range(20)])
        try:
            for workers_number in (1, 2):
                workers.enter_context(Engine(url, max_threads=2))
                for _ in range(2):
                    assert BEGUN.acquire(timeout=HANG_TIMEOUT)
                # each has claimed for its threads, and as many ahead
                assert client.count(status="running") <= 4 * workers_number
        finally:
            OPEN.set()
        assert client.results(handles) == list(range(20))


@pytest.mark.parametrize("name", ["", 7, None, "a\nb"])
def test_a_client_refuses_what_is_no_workflow(url: str, name: object) -> None:
    with Client(url) as client, pytest.raises(InvalidArgument):
        client.start(name)  # type: ignore[call-overload]


def test_what_is_pinned_waits_for_its_version(url: str) -> None:
    with Engine(url, app_version="1", max_running=1) as one:
        assert one.run(client_doubles, 1) == 2
    with Client(url) as client:
        any_version = client.start(client_doubles, 2)
        with Engine(url, app_version="2"):
            assert any_version.result(HANG_TIMEOUT) == 4
        (pinned,) = client.list(app_version="1")
        assert (pinned.app_version, pinned.status) == ("1", "completed")
        assert client.show(any_version.workflow_id).execution.app_version is None
        assert (client.count(app_version="1"), client.count(app_version="2")) == (1, 0)
    for version, message in [("", "empty"), (7, "text"), ("a\nb", "printable"), ("x" * 256, "255")]:
        with pytest.raises(InvalidArgument, match=message):
            Engine(url, app_version=version)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="max_recoveries"):
        Engine(url, max_recoveries=-1)


def test_workers_are_listed_with_the_executions_that_none_can_run(url: str) -> None:
    with Client(url) as client:
        for name in ["survey_unknown", "survey_unknown", "client_doubles"]:
            client.start(RemoteWorkflow(name), 1)
        (seen,) = client.workers().workers
        assert (seen.is_alive, seen.is_client, seen.pid, seen.host) == (
            True,
            True,
            os.getpid(),
            socket.gethostname(),
        )
        assert client.workers().unclaimable == (
            Unclaimable("client_doubles", None, 1, False),
            Unclaimable("survey_unknown", None, 2, False),
        )
        with Engine(url, app_version="7") as engine:
            overview = engine.workers()
            _, worker = overview.workers
            assert (worker.app_version, worker.is_client, "client_doubles" in worker.workflows) == (
                "7",
                False,
                True,
            )
            assert worker.registered_at >= seen.registered_at
            assert (worker.lease_expires_at is None) == url.startswith("sqlite:")
            assert [it.workflow for it in overview.unclaimable] == ["survey_unknown"]

        async def main() -> None:
            async with AsyncClient(url) as other:
                assert (await other.workers()).unclaimable == client.workers().unclaimable

        asyncio.run(main())
