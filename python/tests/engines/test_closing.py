"""Engines that are closed, more than once, by anybody, whatever runs; and engines that nobody closes."""

import asyncio
import gc
import pathlib
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

from stepfast import AsyncEngine, Engine, Handle, Unavailable, step, workflow
from stepfast._runtime.threads.pool import ThreadPool

_begun = threading.Semaphore(0)
_released = threading.Event()
_bodies: list[str] = []


@step
def waits(who: str) -> str:
    _bodies.append(who)
    _begun.release()
    assert _released.wait(60)
    return who


@workflow
def waiting_for_release(who: str) -> str:
    return waits(who)


@step
def noted(who: str) -> str:
    _bodies.append(who)
    return who


@workflow
def noting_who(who: str) -> str:
    return noted(who)


@pytest.fixture(autouse=True)
def fresh() -> None:
    while _begun.acquire(blocking=False):
        pass
    _released.clear()
    _bodies.clear()


def test_a_closed_engine_says_so(url: str) -> None:
    with Engine(url) as engine:
        handle = engine.start(noting_who.options(workflow_id="a"), "a")
        assert handle.result() == "a"
    for use in (
        lambda: engine.start(noting_who, "b"),
        lambda: engine.run(noting_who, "b"),
        lambda: engine.get("a"),
        lambda: engine.list(),
        lambda: engine.show("a"),
        lambda: engine.start(noting_who.options(execution_timeout=60), "b"),
        lambda: handle.status(),
        lambda: handle.cancel(),
        lambda: handle.resume(),
    ):
        with pytest.raises(Unavailable, match="closed") as raised:
            use()
        assert raised.value.code == "SF-0012"
    # what is known is known
    assert handle.result() == "a"


def test_closing_again_does_nothing(url: str) -> None:
    with Engine(url) as engine:
        assert engine.run(noting_who, "a") == "a"
        engine.close()
        engine.close()


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each end of an engine was ready to wait for threads, in seconds."""
    found: list[float] = []
    stop = ThreadPool.stop

    def noted(self: ThreadPool, deadline: float) -> None:
        found.append(deadline - time.monotonic())
        stop(self, deadline)

    monkeypatch.setattr(ThreadPool, "stop", noted)
    return found


def test_a_body_that_blocks_is_not_waited_for_beyond_the_grace(url: str, patience: list[float]) -> None:
    with Engine(url) as engine:
        engine.start(waiting_for_release, "a")
        assert _begun.acquire(timeout=60)
        engine.drain(0)
        engine.close()
    assert len(patience) == 1 and patience[0] <= 0.0
    _released.set()


def test_nor_on_a_loop(url: str, patience: list[float]) -> None:
    async def draining() -> None:
        async with AsyncEngine(url) as engine:
            await engine.start(waiting_for_release, "a")
            assert await asyncio.to_thread(_begun.acquire, timeout=60)
            await engine.drain(0)
            await engine.close()

    asyncio.run(draining())
    assert len(patience) == 1 and patience[0] <= 0.0
    _released.set()


def test_all_who_close_on_a_loop_wait_until_it_is_closed(url: str) -> None:
    async def closing() -> None:
        async with AsyncEngine(url) as engine:
            await engine.start(waiting_for_release, "a")
            assert await asyncio.to_thread(_begun.acquire, timeout=60)
            first = asyncio.ensure_future(engine.close(60))
            opened = engine._opened
            assert opened is not None
            while opened.needs_shutdown:
                await asyncio.sleep(0.01)
            # what is left is the body that blocks
            second = asyncio.ensure_future(engine.close())
            await asyncio.sleep(0.1)
            assert not first.done() and not second.done()
            _released.set()
            await asyncio.gather(first, second)
            assert not [thread for thread in opened.threads._threads if thread.is_alive()]

    asyncio.run(closing())


def test_who_drains_has_ended_its_threads(url: str) -> None:
    engine = Engine(url)
    assert engine.run(noting_who, "a") == "a"
    handle = engine.start(noting_who, "b")
    assert handle.result() == "b"
    engine.drain(60)
    assert not [thread for thread in engine._opened.threads._threads if thread.is_alive()]


def test_all_who_close_wait_until_it_is_closed(url: str) -> None:
    engine = Engine(url)
    assert engine.run(noting_who, "a") == "a"
    threads = [t for t in threading.enumerate() if t.name.removeprefix("stepfast-").isdigit()]
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


def test_who_waits_hears_that_the_engine_is_closed(url: str) -> None:
    heard: list[BaseException] = []

    def wait(handle: Handle[str]) -> None:
        with pytest.raises(Unavailable) as raised:
            handle.result()
        heard.append(raised.value)

    engine = Engine(url)
    handle = engine.start(waiting_for_release.options(workflow_id="a"), "a")
    assert _begun.acquire(timeout=60)
    waiter = threading.Thread(target=wait, args=(handle,))
    waiter.start()
    # the body goes on for ever: closing does not wait for that
    engine.close(grace=0.2)
    waiter.join(60)
    assert [error.code for error in heard] == ["SF-0012"]  # type: ignore[attr-defined]
    _released.set()
    # what the body came to was dropped: it runs again
    with Engine(url) as engine:
        assert engine.get("a").result() == "a"
    assert _bodies == ["a", "a"]


def test_code_that_its_caller_runs_is_handed_back(url: str) -> None:
    heard: list[BaseException] = []

    def run() -> None:
        with pytest.raises(Unavailable) as raised:
            engine.run(waiting_for_release.options(workflow_id="a"), "a")
        heard.append(raised.value)

    engine = Engine(url)
    caller = threading.Thread(target=run)
    caller.start()
    assert _begun.acquire(timeout=60)
    engine.close(grace=60)
    # another engine need not wait for the caller, whose body goes on
    with Engine(url) as other:
        assert _begun.acquire(timeout=60)
        assert caller.is_alive()
        _released.set()
        assert other.get("a").result() == "a"
    caller.join(60)
    assert [error.code for error in heard] == ["SF-0012"]  # type: ignore[attr-defined]
    assert _bodies == ["a", "a"]


_closing: list[Engine] = []


@step
def closes() -> str:
    if _closing:
        _closing.pop().close(grace=60)
    return "closed"


@workflow
def closing_from_a_body() -> str:
    return closes()


@pytest.mark.parametrize("how", ["run", "start"])
def test_a_body_may_close_the_engine_that_runs_it(how: str, url: str) -> None:
    engine = Engine(url)
    _closing.append(engine)
    with pytest.raises(Unavailable):
        if how == "run":
            engine.run(closing_from_a_body.options(workflow_id="a"))
        else:
            engine.start(closing_from_a_body.options(workflow_id="a")).result()
    with Engine(url) as other:
        assert other.get("a").result() == "closed"


def test_an_exception_inside_closes_the_engine(url: str) -> None:
    with pytest.raises(LookupError), Engine(url) as engine:
        raise LookupError
    with pytest.raises(Unavailable):
        engine.run(noting_who, "a")


def test_one_store_is_opened_twice(url: str) -> None:
    with Engine(url) as first, Engine(url) as second:
        handle = first.start(noting_who.options(workflow_id="a"), "a")
        assert second.get("a").result() == "a" == handle.result()
        first.close()
        assert second.run(noting_who, "b") == "b"
        assert {execution.workflow for execution in second.list()} == {"noting_who"}


@step
def starts_in_thread(how: str) -> str:
    outputs: list[str] = []
    engine = _closing[-1]
    starting = threading.Thread(target=lambda: outputs.append(engine.start(noting_who, how).result()))
    starting.start()
    starting.join(60)
    return engine.run(noting_who, outputs[0])


@workflow
def starting_in_thread(how: str) -> str:
    return starts_in_thread(how)


def test_executions_are_started_from_any_thread(url: str) -> None:
    with Engine(url) as engine:
        _closing.append(engine)
        try:
            assert engine.run(starting_in_thread, "run") == "run"
            assert engine.start(starting_in_thread, "start").result() == "start"
        finally:
            _closing.clear()


WAIT_UNTIL_GONE = """
import fcntl, sys
with open(sys.argv[1], "r+b") as presence:
    fcntl.lockf(presence, fcntl.LOCK_EX, 1, int(sys.argv[2]))
"""


def test_an_engine_that_nobody_has_is_closed(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "test.db"
    engine = Engine(f"sqlite:{path}")
    assert engine.run(noting_who, "a") == "a"
    threads = [t for t in threading.enumerate() if t.name.removeprefix("stepfast-").isdigit()]
    assert threads
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    [worker] = database.execute("SELECT worker_id FROM workers").fetchone()
    database.close()
    with pytest.warns(ResourceWarning, match="close"):
        del engine
        gc.collect()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    # returns when its lock is free: others take over what it had
    subprocess.run(
        [sys.executable, "-c", WAIT_UNTIL_GONE, f"{path}-presence", str(worker)], check=True, timeout=60
    )


def test_a_handle_keeps_its_engine(url: str) -> None:
    handle = Engine(url).start(noting_who, "a")
    gc.collect()
    assert handle.result() == "a"
    with pytest.warns(ResourceWarning):
        del handle
        gc.collect()


def test_an_engine_that_could_not_be_opened_leaves_nothing(tmp_path: pathlib.Path) -> None:
    before = set(threading.enumerate())
    with pytest.raises(Exception, match="no directory"):
        Engine(f"sqlite:{tmp_path}/missing/test.db")
    gc.collect()
    # one of an earlier test may have ended meanwhile
    assert set(threading.enumerate()) <= before


@workflow
def cleaning_up(who: str) -> str:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        # the code makes a call while the program is to end: it is not made
        noted("not made")
        raise


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
def test_who_handles_the_end_of_the_program_may_run_workflows(raised: type[BaseException], url: str) -> None:
    with Engine(url) as engine:
        try:
            raise raised
        except raised:
            assert engine.run(noting_who, "a") == "a"
            assert engine.start(noting_who, "b").result() == "b"
            with pytest.raises(KeyboardInterrupt):
                engine.run(cleaning_up, "c")
    assert _bodies == ["a", "b"]


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
def test_so_may_who_does_it_on_a_loop(raised: type[BaseException], url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            try:
                raise raised
            except raised:
                assert await engine.run(noting_on_a_loop, "a") == "a"
                assert await (await engine.start(noting_on_a_loop, "b")) == "b"

    asyncio.run(main())


@step
async def noted_on_a_loop(who: str) -> str:
    return who


@workflow
async def noting_on_a_loop(who: str) -> str:
    return await noted_on_a_loop(who)


#: Threads that use an engine while it is closed, and go on after that.
_USED_WHILE_CLOSING = """
import threading

from stepfast import Engine, Unavailable, workflow

@workflow
def echo(n: int) -> int:
    return n

engine = Engine("memory:")
used, refused, over = threading.Semaphore(0), threading.Semaphore(0), threading.Event()

def use() -> None:
    while not over.is_set():
        try:
            engine.start(echo, 1)
            used.release()
        except Unavailable:
            refused.release()

threads = [threading.Thread(target=use) for _ in range(8)]
for thread in threads:
    thread.start()
for _ in range(100):
    used.acquire()
engine.close()
for _ in range(4000):
    refused.acquire()
over.set()
for thread in threads:
    thread.join()
print("done")
"""


def test_threads_that_use_a_closed_engine_do_not_stand_still() -> None:
    command = [sys.executable, "-c", _USED_WHILE_CLOSING]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.returncode) == ("done\n", 0), ran.stderr
