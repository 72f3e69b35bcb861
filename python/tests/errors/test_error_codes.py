"""Error codes of exceptions that callers catch: each is the code of the event that ended the execution."""

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

STEP_BEGUN, STEP_RELEASED = threading.Event(), threading.Event()
STEP_NAMES = ["first"]

#: A program whose execution kills its worker.
KILLED_PROGRAM = """
import os, sys
from stepfast import Engine, step, workflow

@step
def exit_process() -> None:
    os._exit(9)

@workflow
def kill_worker() -> None:
    exit_process()

with Engine(sys.argv[1]) as engine:
    engine.run(kill_worker.options(workflow_id="x"))
"""


@step
def wait_for_release() -> None:
    STEP_BEGUN.set()
    STEP_RELEASED.wait(60)


@workflow
def sleep_for_one_hour() -> None:
    sleep(3600)


@workflow
def return_large_text(size: int) -> str:
    return "x" * size


@workflow
def call_renamed_step() -> None:
    step(name=STEP_NAMES[0])(lambda: None)()
    wait_for_release()


@workflow
def kill_worker() -> None:
    raise AssertionError("the execution has run again")


@dataclass
class Order:
    number: int


@workflow
def return_order_number(order: Order) -> int:
    return order.number


@workflow
async def sleep_for_one_hour_async() -> None:
    await sleep(3600)


def code_of(raised: pytest.ExceptionInfo[Error]) -> str:
    """Returns the error code of an exception, whose text must contain the code."""
    assert raised.value.code in str(raised.value)
    return raised.value.code


def test_request_and_time_limit_have_different_codes(url: str) -> None:
    with Engine(url) as engine:
        cancelled, expired = (
            engine.start(sleep_for_one_hour),
            engine.start(sleep_for_one_hour.options(execution_timeout=0.05)),
        )
        assert cancelled.cancel()
        for handle, code in ((cancelled, "SF-0022"), (expired, "SF-0021")):
            second_handle = engine.get(handle.workflow_id)
            for wait in (handle.result, second_handle.result, lambda handle=handle: engine.results([handle])):
                with pytest.raises(WorkflowCancelled) as raised:
                    wait()
                assert code_of(raised) == code
        with pytest.raises(WorkflowCancelled) as raised:
            engine.run(sleep_for_one_hour.options(execution_timeout=0.05))
        assert code_of(raised) == "SF-0021"


def test_async_request_and_time_limit_have_different_codes(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            with pytest.raises(WorkflowCancelled) as raised:
                await engine.run(sleep_for_one_hour_async.options(execution_timeout=0.05))
            assert code_of(raised) == "SF-0021"
            handle = await engine.start(sleep_for_one_hour_async)
            assert await handle.cancel()
            with pytest.raises(WorkflowCancelled) as raised:
                await handle
            assert code_of(raised) == "SF-0022"

    asyncio.run(main())


def test_large_value_has_its_own_code(url: str) -> None:
    with Engine(url, value_limit=1000) as engine:
        for call in (
            lambda: engine.run(return_large_text, 2000),
            engine.start(return_large_text, 2000).result,
        ):
            with pytest.raises(WorkflowFailed) as raised:
                call()
            assert code_of(raised) == "SF-0007"


def test_parked_execution_has_its_own_code(url: str) -> None:
    for event in (STEP_BEGUN, STEP_RELEASED):
        event.clear()
    STEP_NAMES[0] = "first"
    with Engine(url) as engine:
        handle = engine.start(call_renamed_step.options(workflow_id="x"))
        assert STEP_BEGUN.wait(60)
        engine.close(0.0)
    STEP_RELEASED.set()
    STEP_NAMES[0] = "second"
    with Engine(url) as engine:
        handle = engine.get("x")
        with pytest.raises(WorkflowParked) as raised:
            handle.result()
        assert code_of(raised) == "SF-0023"


def test_execution_that_kills_workers_has_its_own_code(tmp_path: pathlib.Path) -> None:
    # on Postgres the takeover of each killed worker would wait for its lease
    url = f"sqlite:{tmp_path}/test.db"
    for _ in range(3):
        program = subprocess.run(
            [sys.executable, "-c", KILLED_PROGRAM, url],
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


def test_unreadable_input_has_its_own_code(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(url) as client:
        handle = client.start(return_order_number, Order(7))
        with monkeypatch.context() as patch:
            patch.delattr(sys.modules[__name__], "Order")
            with Engine(url):
                with pytest.raises(WorkflowParked) as raised:
                    handle.result()
                assert code_of(raised) == "SF-0026"
        with Engine(url):
            assert handle.resume()
            assert handle.result() == 7
