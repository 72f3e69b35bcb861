"""Closes of engines: repeated, concurrent and during executions; and the end of unreferenced engines."""

import asyncio
import gc
import pathlib
import subprocess
import sys
import threading
import time

import pytest

from stepfast import AsyncEngine, Engine, Handle, Unavailable, step, workflow
from stepfast._runtime.threads.pool import ThreadPool

_begun_bodies = threading.Semaphore(0)
_is_released = threading.Event()
_body_texts: list[str] = []


@step
def wait_for_release(text: str) -> str:
    _body_texts.append(text)
    _begun_bodies.release()
    assert _is_released.wait(60)
    return text


@workflow
def run_blocking_step(text: str) -> str:
    return wait_for_release(text)


@step
def record_body(text: str) -> str:
    _body_texts.append(text)
    return text


@workflow
def run_recording_step(text: str) -> str:
    return record_body(text)


@pytest.fixture(autouse=True)
def reset_state() -> None:
    while _begun_bodies.acquire(blocking=False):
        pass
    _is_released.clear()
    _body_texts.clear()


def test_closed_engine_refuses_every_call(url: str) -> None:
    with Engine(url) as engine:
        handle = engine.start(run_recording_step.options(workflow_id="a"), "a")
        assert handle.result() == "a"
    for use in (
        lambda: engine.start(run_recording_step, "b"),
        lambda: engine.run(run_recording_step, "b"),
        lambda: engine.get("a"),
        lambda: engine.list(),
        lambda: engine.show("a"),
        lambda: engine.start(run_recording_step.options(execution_timeout=60), "b"),
        lambda: handle.status(),
        lambda: handle.cancel(),
        lambda: handle.resume(),
    ):
        with pytest.raises(Unavailable, match="closed") as raised:
            use()
        assert raised.value.code == "SF-0012"
    # the handle already has the result
    assert handle.result() == "a"


def test_second_close_has_no_effect(url: str) -> None:
    with Engine(url) as engine:
        assert engine.run(run_recording_step, "a") == "a"
        engine.close()
        engine.close()


@pytest.fixture
def thread_timeouts(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The maximum time that each end of an engine waits for threads, in seconds."""
    timeouts: list[float] = []
    stop = ThreadPool.stop

    def record_timeout(self: ThreadPool, deadline: float) -> None:
        timeouts.append(deadline - time.monotonic())
        stop(self, deadline)

    monkeypatch.setattr(ThreadPool, "stop", record_timeout)
    return timeouts


def test_drain_abandons_bodies_beyond_its_grace(url: str, thread_timeouts: list[float]) -> None:
    with Engine(url) as engine:
        engine.start(run_blocking_step, "a")
        assert _begun_bodies.acquire(timeout=60)
        engine.drain(0)
        engine.close()
    assert len(thread_timeouts) == 1 and thread_timeouts[0] <= 0.0
    _is_released.set()


def test_drain_on_loop_abandons_bodies_beyond_its_grace(url: str, thread_timeouts: list[float]) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            await engine.start(run_blocking_step, "a")
            assert await asyncio.to_thread(_begun_bodies.acquire, timeout=60)
            await engine.drain(0)
            await engine.close()

    asyncio.run(main())
    assert len(thread_timeouts) == 1 and thread_timeouts[0] <= 0.0
    _is_released.set()


def test_concurrent_closes_on_loop_wait_for_threads(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            await engine.start(run_blocking_step, "a")
            assert await asyncio.to_thread(_begun_bodies.acquire, timeout=60)
            first = asyncio.ensure_future(engine.close(60))
            opened = engine._open_engine
            assert opened is not None
            while opened.needs_shutdown:
                await asyncio.sleep(0.01)
            # only the blocking body remains
            second = asyncio.ensure_future(engine.close())
            await asyncio.sleep(0.1)
            assert not first.done() and not second.done()
            _is_released.set()
            await asyncio.gather(first, second)
            assert not [thread for thread in opened.threads._threads if thread.is_alive()]

    asyncio.run(main())


def test_drained_engine_has_no_threads(url: str) -> None:
    engine = Engine(url)
    assert engine.run(run_recording_step, "a") == "a"
    handle = engine.start(run_recording_step, "b")
    assert handle.result() == "b"
    engine.drain(60)
    assert not [thread for thread in engine._open_engine.threads._threads if thread.is_alive()]


def step_threads(others: list[threading.Thread]) -> list[threading.Thread]:
    """Returns the threads of steps without `others`: engines of other tests may still have threads."""
    new = [thread for thread in threading.enumerate() if thread not in others]
    return [thread for thread in new if thread.name.removeprefix("stepfast-").isdigit()]


def test_concurrent_closes_wait_for_threads(url: str) -> None:
    others = threading.enumerate()
    engine = Engine(url)
    assert engine.run(run_recording_step, "a") == "a"
    threads = step_threads(others)
    assert threads
    alive: list[bool] = []

    def close() -> None:
        engine.close()
        alive.append(any(thread.is_alive() for thread in threads))

    closers = [threading.Thread(target=close) for _ in range(8)]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join(60)
    assert alive == [False] * 8


def test_close_ends_waits_for_results(url: str) -> None:
    errors: list[BaseException] = []

    def wait(handle: Handle[str]) -> None:
        with pytest.raises(Unavailable) as raised:
            handle.result()
        errors.append(raised.value)

    engine = Engine(url)
    handle = engine.start(run_blocking_step.options(workflow_id="a"), "a")
    assert _begun_bodies.acquire(timeout=60)
    waiter = threading.Thread(target=wait, args=(handle,))
    waiter.start()
    # the body continues without limit, and the close does not wait for the body
    engine.close(grace=0.2)
    waiter.join(60)
    assert [error.code for error in errors] == ["SF-0012"]  # type: ignore[attr-defined]
    _is_released.set()
    # the close dropped the outcome of the body, so the body runs again
    with Engine(url) as engine:
        assert engine.get("a").result() == "a"
    assert _body_texts == ["a", "a"]


def test_close_requeues_executions_of_blocked_callers(url: str) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        with pytest.raises(Unavailable) as raised:
            engine.run(run_blocking_step.options(workflow_id="a"), "a")
        errors.append(raised.value)

    engine = Engine(url)
    caller = threading.Thread(target=run)
    caller.start()
    assert _begun_bodies.acquire(timeout=60)
    engine.close(grace=60)
    # another engine need not wait for the caller, whose body continues
    with Engine(url) as other:
        assert _begun_bodies.acquire(timeout=60)
        assert caller.is_alive()
        _is_released.set()
        assert other.get("a").result() == "a"
    caller.join(60)
    assert [error.code for error in errors] == ["SF-0012"]  # type: ignore[attr-defined]
    assert _body_texts == ["a", "a"]


_engines: list[Engine] = []


@step
def close_engine() -> str:
    if _engines:
        _engines.pop().close(grace=60)
    return "closed"


@workflow
def run_closing_step() -> str:
    return close_engine()


@pytest.mark.parametrize("method", ["run", "start"])
def test_body_can_close_its_engine(method: str, url: str) -> None:
    engine = Engine(url)
    _engines.append(engine)
    with pytest.raises(Unavailable):
        if method == "run":
            engine.run(run_closing_step.options(workflow_id="a"))
        else:
            engine.start(run_closing_step.options(workflow_id="a")).result()
    with Engine(url) as other:
        assert other.get("a").result() == "closed"


def test_exception_in_block_closes_engine(url: str) -> None:
    with pytest.raises(LookupError), Engine(url) as engine:
        raise LookupError
    with pytest.raises(Unavailable):
        engine.run(run_recording_step, "a")


def test_two_engines_share_one_store(url: str) -> None:
    with Engine(url) as first, Engine(url) as second:
        handle = first.start(run_recording_step.options(workflow_id="a"), "a")
        assert second.get("a").result() == "a" == handle.result()
        first.close()
        assert second.run(run_recording_step, "b") == "b"
        assert {execution.workflow for execution in second.list()} == {"run_recording_step"}


@step
def start_in_thread(method: str) -> str:
    outputs: list[str] = []
    engine = _engines[-1]
    thread = threading.Thread(
        target=lambda: outputs.append(engine.start(run_recording_step, method).result())
    )
    thread.start()
    thread.join(60)
    return engine.run(run_recording_step, outputs[0])


@workflow
def run_starting_step(method: str) -> str:
    return start_in_thread(method)


def test_executions_start_from_any_thread(url: str) -> None:
    with Engine(url) as engine:
        _engines.append(engine)
        try:
            assert engine.run(run_starting_step, "run") == "run"
            assert engine.start(run_starting_step, "start").result() == "start"
        finally:
            _engines.clear()


#: Prints the id of the only worker.
READ_WORKER_PROGRAM = """
import sqlite3, sys
[worker] = sqlite3.connect(sys.argv[1]).execute("SELECT worker_id FROM workers").fetchone()
print(worker)
"""

#: Returns when the lock of the worker in the second argument is free.
WAIT_FOR_LOCK_PROGRAM = """
import fcntl, sys
with open(sys.argv[1], "r+b") as presence:
    fcntl.lockf(presence, fcntl.LOCK_EX, 1, int(sys.argv[2]))
"""


def test_unreferenced_engine_is_closed(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "test.db"
    others = threading.enumerate()
    engine = Engine(f"sqlite:{path}")
    assert engine.run(run_recording_step, "a") == "a"
    threads = step_threads(others)
    assert threads
    read_worker = [sys.executable, "-c", READ_WORKER_PROGRAM, str(path)]
    process = subprocess.run(read_worker, capture_output=True, text=True, check=True, timeout=60)
    worker = process.stdout.strip()
    with pytest.warns(ResourceWarning, match="close"):
        del engine
        gc.collect()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    # a worker whose lock is free can be taken over
    subprocess.run(
        [sys.executable, "-c", WAIT_FOR_LOCK_PROGRAM, f"{path}-presence", worker], check=True, timeout=60
    )


def test_handle_keeps_its_engine_open(url: str) -> None:
    handle = Engine(url).start(run_recording_step, "a")
    gc.collect()
    assert handle.result() == "a"
    with pytest.warns(ResourceWarning):
        del handle
        gc.collect()


def test_failed_open_leaves_no_threads(tmp_path: pathlib.Path) -> None:
    earlier_threads = set(threading.enumerate())
    with pytest.raises(Exception, match="no directory"):
        Engine(f"sqlite:{tmp_path}/missing/test.db")
    gc.collect()
    # a thread of an earlier test may have ended meanwhile
    assert set(threading.enumerate()) <= earlier_threads


@workflow
def call_step_in_interrupt(text: str) -> str:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        # a call during the end of the program has no effect
        record_body("not called")
        raise


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
def test_handler_of_program_exit_runs_workflows(raised: type[BaseException], url: str) -> None:
    with Engine(url) as engine:
        try:
            raise raised
        except raised:
            assert engine.run(run_recording_step, "a") == "a"
            assert engine.start(run_recording_step, "b").result() == "b"
            with pytest.raises(KeyboardInterrupt):
                engine.run(call_step_in_interrupt, "c")
    assert _body_texts == ["a", "b"]


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
def test_handler_of_program_exit_runs_workflows_on_loop(raised: type[BaseException], url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            try:
                raise raised
            except raised:
                assert await engine.run(run_step_on_loop, "a") == "a"
                assert await (await engine.start(run_step_on_loop, "b")) == "b"

    asyncio.run(main())


@step
async def return_text_on_loop(text: str) -> str:
    return text


@workflow
async def run_step_on_loop(text: str) -> str:
    return await return_text_on_loop(text)


#: Threads that use an engine during its close and afterwards.
_CONCURRENT_USE_PROGRAM = """
import threading

from stepfast import Engine, Unavailable, workflow

@workflow
def echo(n: int) -> int:
    return n

engine = Engine("memory:")
accepted, refused, is_over = threading.Semaphore(0), threading.Semaphore(0), threading.Event()

def use() -> None:
    while not is_over.is_set():
        try:
            engine.start(echo, 1)
            accepted.release()
        except Unavailable:
            refused.release()

threads = [threading.Thread(target=use) for _ in range(8)]
for thread in threads:
    thread.start()
for _ in range(100):
    accepted.acquire()
engine.close()
for _ in range(4000):
    refused.acquire()
is_over.set()
for thread in threads:
    thread.join()
print("done")
"""


def test_closed_engine_never_blocks_calling_threads() -> None:
    command = [sys.executable, "-c", _CONCURRENT_USE_PROGRAM]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (process.stdout, process.returncode) == ("done\n", 0), process.stderr
