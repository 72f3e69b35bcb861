"""What engines log, in the standard `logging`."""

import logging
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from repository import PROGRAMS
from watched_process import HANG_TIMEOUT, Pipe

from stepfast import Client, Engine, RemoteWorkflow, workflow

PROGRAM = str(PROGRAMS / "worker_program.py")


@workflow
def engine_log_doubles(n: int) -> int:
    return 2 * n


class Lines(logging.Handler):
    """Keeps what it is handed; while it is told to hold, it does not return."""

    def __init__(self) -> None:
        super().__init__()
        self.came: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def emit(self, record: logging.LogRecord) -> None:
        self.came.put(record)
        assert self.goes_on.wait(HANG_TIMEOUT)

    def until(self, *words: str) -> logging.LogRecord:
        """Waits for a line with all of these in it."""
        while True:
            record = self.came.get(timeout=HANG_TIMEOUT)
            if all(word in record.getMessage() for word in words):
                return record


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = Lines()
    logger = logging.getLogger("stepfast.engine")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    handler.goes_on.set()
    logger.setLevel(logging.NOTSET)
    logger.removeHandler(handler)


def test_an_engine_tells_of_its_begin_and_end(url: str, lines: Lines) -> None:
    before = time.time()
    with Engine(url) as engine:
        opened = lines.until("the engine is open", "worker: 1", "store: ", "database: ")
        assert engine.run(engine_log_doubles, 4) == 8
        engine.drain()
    draining = lines.until("draining")
    ended = lines.until("has ended", "worker: 1")
    assert before <= opened.created <= draining.created <= ended.created <= time.time()
    assert {record.levelname for record in (opened, draining, ended)} == {"INFO"}
    assert (ended.name, ended.__dict__["stepfast_workflow_id"]) == ("stepfast.engine", "")


def test_an_engine_tells_whom_it_takes_over(url: str, lines: Lines, tmp_path: pathlib.Path) -> None:
    pipe = Pipe(tmp_path / "pipe")
    with Client(url) as client:
        client.start(RemoteWorkflow("worker_waits"), str(tmp_path / "flag"))
        with subprocess.Popen([sys.executable, PROGRAM, url, pipe.path, "0"]) as worker:
            try:
                while "body" not in pipe.read_line():
                    pass
            finally:
                worker.kill()
    assert worker.returncode == -signal.SIGKILL
    with Engine(url):
        lines.until("a worker is dead", f"(worker: 2, host: {socket.gethostname()}, pid: {worker.pid})")
        lines.until("took over dead workers", "recovered: 1")


def test_who_handles_lines_does_not_hold_up_the_engine(lines: Lines) -> None:
    lines.goes_on.clear()
    for _ in range(600):
        with Engine("memory:") as engine:
            assert engine.run(engine_log_doubles, 4) == 8
    lines.goes_on.set()
    assert lines.until("were dropped").levelname == "WARNING"


ENDING = """
import logging, os, sys
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s", stream=sys.stdout)
from stepfast import Engine
{}
"""


@pytest.mark.parametrize(
    "code",
    [
        "engine = Engine(sys.argv[1])",
        "child = os.fork()\nif child: os.waitpid(child, 0), os._exit(0)\nengine = Engine(sys.argv[1])",
        "with Engine(sys.argv[1]): pass\nif os.fork(): os.wait(), os._exit(0)\nengine = Engine(sys.argv[1])",
    ],
    ids=["program", "child", "child of an engine's"],
)
def test_the_last_line_is_told_at_the_end_of_the_program(code: str, tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-c", ENDING.format(code), f"sqlite:{tmp_path}/shop.db"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=HANG_TIMEOUT, check=True)
    last = told.stdout.splitlines()[-1]
    assert last.startswith("INFO stepfast.engine the engine has ended"), told


#: A factory of the program's that calls the one before, as the cookbook of `logging` has it.
_WRAPPED = """
import logging
from stepfast import Engine

for n in range(3):
    with Engine("memory:"):
        logging.warning("with an engine")
    before = logging.getLogRecordFactory()

    def factory(*args, before=before, **kwargs):
        record = before(*args, **kwargs)
        record.wrapped = getattr(record, "wrapped", 0) + 1
        return record

    logging.setLogRecordFactory(factory)
with Engine("memory:"):
    record = logging.getLogger().makeRecord("n", 20, "file", 1, "text", (), None)
    print(record.wrapped, repr(record.stepfast_workflow_id))
"""


def test_factories_of_records_may_wrap_each_other() -> None:
    ran = subprocess.run([sys.executable, "-c", _WRAPPED], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "3 ''\n", ran.stderr


@pytest.mark.parametrize("name", ["step", "workflow", "workflow_id", "is_replaying"])
def test_names_are_free_for_programs(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with Engine("memory:"):
        logging.getLogger("train").warning("epoch", extra={name: 3})
    logging.getLogger("train").warning("epoch", extra={name: 3})
    assert [getattr(it, name) for it in caplog.records if it.name == "train"] == [3, 3]
