"""Log records of engines in the standard `logging`."""

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

WORKER_PROGRAM = str(PROGRAMS / "worker_program.py")


@workflow
def double_beside_log(n: int) -> int:
    return 2 * n


class RecordHandler(logging.Handler):
    """A log handler that keeps the records, and blocks while `can_return` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
        self.can_return = threading.Event()
        self.can_return.set()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.put(record)
        assert self.can_return.wait(HANG_TIMEOUT)

    def wait_for(self, *words: str) -> logging.LogRecord:
        """Waits for a record whose message contains all words, and returns the record."""
        while True:
            record = self.records.get(timeout=HANG_TIMEOUT)
            if all(word in record.getMessage() for word in words):
                return record


@pytest.fixture
def handler() -> Iterator[RecordHandler]:
    """A handler of the log records of engines."""
    handler = RecordHandler()
    logger = logging.getLogger("stepfast.engine")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    handler.can_return.set()
    logger.setLevel(logging.NOTSET)
    logger.removeHandler(handler)


def test_engine_logs_its_begin_and_end(url: str, handler: RecordHandler) -> None:
    before = time.time()
    with Engine(url) as engine:
        opened = handler.wait_for("the engine is open", "worker: 1", "store: ", "database: ")
        assert engine.run(double_beside_log, 4) == 8
        engine.drain()
    draining = handler.wait_for("draining")
    ended = handler.wait_for("has ended", "worker: 1")
    assert before <= opened.created <= draining.created <= ended.created <= time.time()
    assert {record.levelname for record in (opened, draining, ended)} == {"INFO"}
    assert (ended.name, ended.__dict__["stepfast_workflow_id"]) == ("stepfast.engine", "")


def test_takeover_logs_dead_worker(url: str, handler: RecordHandler, tmp_path: pathlib.Path) -> None:
    pipe = Pipe(tmp_path / "pipe")
    with Client(url) as client:
        client.start(RemoteWorkflow("worker_waits"), str(tmp_path / "flag"))
        with subprocess.Popen([sys.executable, WORKER_PROGRAM, url, pipe.path, "0"]) as worker:
            try:
                while "body" not in pipe.read_line():
                    pass
            finally:
                worker.kill()
    assert worker.returncode == -signal.SIGKILL
    with Engine(url):
        handler.wait_for("a worker is dead", f"(worker: 2, host: {socket.gethostname()}, pid: {worker.pid})")
        handler.wait_for("took over dead workers", "recovered: 1")


def test_blocked_log_handler_never_blocks_engine(handler: RecordHandler) -> None:
    handler.can_return.clear()
    for _ in range(600):
        with Engine("memory:") as engine:
            assert engine.run(double_beside_log, 4) == 8
    handler.can_return.set()
    assert handler.wait_for("were dropped").levelname == "WARNING"


LOGGING_PROGRAM = """
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
    ids=["program", "child", "child of a closed engine's process"],
)
def test_exit_of_program_logs_end_of_engine(code: str, tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-c", LOGGING_PROGRAM.format(code), f"sqlite:{tmp_path}/shop.db"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=HANG_TIMEOUT, check=True)
    last = process.stdout.splitlines()[-1]
    assert last.startswith("INFO stepfast.engine the engine has ended"), process


#: A program with a record factory that calls the factory before it, as in the cookbook of `logging`.
_WRAPPING_PROGRAM = """
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


def test_record_factories_wrap_each_other() -> None:
    process = subprocess.run(
        [sys.executable, "-c", _WRAPPING_PROGRAM], capture_output=True, text=True, timeout=60
    )
    assert process.stdout == "3 ''\n", process.stderr


@pytest.mark.parametrize("name", ["step", "workflow", "workflow_id", "is_replaying"])
def test_log_record_names_remain_free_for_programs(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with Engine("memory:"):
        logging.getLogger("train").warning("epoch", extra={name: 3})
    logging.getLogger("train").warning("epoch", extra={name: 3})
    assert [getattr(it, name) for it in caplog.records if it.name == "train"] == [3, 3]
