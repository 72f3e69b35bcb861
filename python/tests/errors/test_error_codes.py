"""The code of an exception is that of what has ended the execution, not that of its envelope."""

from __future__ import annotations

import asyncio
import pathlib
import subprocess
import sys
import threading
from dataclasses import dataclass

import pytest
from watched_process import HANG_TIMEOUT

from stepfast import (
    AsyncEngine,
    Client,
    Engine,
    Error,
    WorkflowCancelled,
    WorkflowFailed,
    WorkflowParked,
    sleep,
    step,
    workflow,
)

HELD, GOES = threading.Event(), threading.Event()
NAMES = ["first"]

#: A worker that its execution kills.
KILLED = """
import os, sys
from stepfast import Engine, step, workflow

@step
def dies() -> None:
    os._exit(9)

@workflow
def kills_its_worker() -> None:
    dies()

with Engine(sys.argv[1]) as engine:
    engine.run(kills_its_worker.options(workflow_id="x"))
"""


@step
def held() -> None:
    HELD.set()
    GOES.wait(60)


@workflow
def sleeps_for_long() -> None:
    sleep(3600)


@workflow
def returns_much(size: int) -> str:
    return "x" * size


@workflow
def calls_by_another_name() -> None:
    step(name=NAMES[0])(lambda: None)()
    held()


@workflow
def kills_its_worker() -> None:
    raise AssertionError("it is not tried again")


@dataclass
class Order:
    number: int


@workflow
def takes_an_order(order: Order) -> int:
    return order.number


@workflow
async def sleeps_for_long_async() -> None:
    await sleep(3600)


def code_of(raised: pytest.ExceptionInfo[Error]) -> str:
    assert raised.value.code in str(raised.value)
    return raised.value.code


def test_a_request_and_a_deadline_are_told_apart(url: str) -> None:
    with Engine(url) as engine:
        asked, late = (
            engine.start(sleeps_for_long),
            engine.start(sleeps_for_long.options(execution_timeout=0.05)),
        )
        assert asked.cancel()
        for handle, code in ((asked, "SF-0022"), (late, "SF-0021")):
            again = engine.get(handle.workflow_id)
            for do in (handle.result, again.result, lambda handle=handle: engine.results([handle])):
                with pytest.raises(WorkflowCancelled) as raised:
                    do()
                assert code_of(raised) == code
        with pytest.raises(WorkflowCancelled) as raised:
            engine.run(sleeps_for_long.options(execution_timeout=0.05))
        assert code_of(raised) == "SF-0021"


def test_async_handles_tell_them_apart(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            with pytest.raises(WorkflowCancelled) as raised:
                await engine.run(sleeps_for_long_async.options(execution_timeout=0.05))
            assert code_of(raised) == "SF-0021"
            handle = await engine.start(sleeps_for_long_async)
            assert await handle.cancel()
            with pytest.raises(WorkflowCancelled) as raised:
                await handle
            assert code_of(raised) == "SF-0022"

    asyncio.run(main())


def test_a_value_that_is_too_large_has_its_own_code(url: str) -> None:
    with Engine(url, value_limit=1000) as engine:
        for do in (lambda: engine.run(returns_much, 2000), engine.start(returns_much, 2000).result):
            with pytest.raises(WorkflowFailed) as raised:
                do()
            assert code_of(raised) == "SF-0007"


def test_what_parks_has_its_own_code(url: str) -> None:
    for event in (HELD, GOES):
        event.clear()
    NAMES[0] = "first"
    with Engine(url) as engine:
        handle = engine.start(calls_by_another_name.options(workflow_id="x"))
        assert HELD.wait(60)
        engine.close(0.0)
    GOES.set()
    NAMES[0] = "second"
    with Engine(url) as engine:
        handle = engine.get("x")
        with pytest.raises(WorkflowParked) as raised:
            handle.result()
        assert code_of(raised) == "SF-0023"


def test_an_execution_that_kills_its_workers_has_its_own_code(tmp_path: pathlib.Path) -> None:
    # on Postgres each worker that is killed is lost after its lease only
    url = f"sqlite:{tmp_path}/test.db"
    for _ in range(3):
        program = subprocess.run(
            [sys.executable, "-c", KILLED, url],
            capture_output=True,
            text=True,
            timeout=HANG_TIMEOUT,
            check=False,
        )
        assert program.returncode == 9, program.stderr
    with Engine(url, max_recoveries=0) as engine:
        handle = engine.get("x")
        with pytest.raises(WorkflowFailed) as raised:
            handle.result()
        assert code_of(raised) == "SF-0027"


def test_an_input_that_cannot_be_read_has_its_own_code(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(url) as client:
        handle = client.start(takes_an_order, Order(7))
        with monkeypatch.context() as program:
            program.delattr(sys.modules[__name__], "Order")
            with Engine(url):
                with pytest.raises(WorkflowParked) as raised:
                    handle.result()
                assert code_of(raised) == "SF-0026"
        with Engine(url):
            assert handle.resume()
            assert handle.result() == 7
