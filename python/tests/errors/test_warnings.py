"""Warnings about programs that lose durability, or block an event loop."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import warnings
from collections.abc import Iterator

import pytest
from watched_process import HANG_TIMEOUT

from stepfast import AsyncEngine, Client, Engine, Instance, StepfastWarning, sleep, step, workflow


@workflow
def double_number(n: int) -> int:
    return 2 * n


@workflow
async def double_number_async(n: int) -> int:
    return 2 * n


@step
def call_workflow_in_step(n: int) -> int:
    return double_number(n)


@workflow
def call_workflow_as_child(n: int) -> int:
    return double_number(n) + call_workflow_in_step(n)


@workflow
def sleep_briefly() -> None:
    sleep(0.5)


class Shop(Instance):
    @workflow
    def sell(self, n: int) -> int:
        return n


@pytest.fixture
def shop() -> Shop:
    return Shop("warned")


def test_direct_call_warns_while_engine_is_open(shop: Shop) -> None:
    assert double_number(1) == 2
    with Engine("memory:") as engine:
        with pytest.warns(StepfastWarning, match="'double_number' is called directly while") as warned:
            assert double_number(1) == 2
        assert warned[0].filename == __file__
        with pytest.warns(StepfastWarning, match="'Shop.sell' is called directly") as warned:
            assert shop.sell(3) == 3
        assert warned[0].filename == __file__
        # calls by code of executions are no direct calls
        assert engine.run(call_workflow_as_child, 2) == 8
        assert engine.run(double_number, 2) == 4
        assert engine.start(call_workflow_as_child, 2).result() == 8
        assert double_number.__wrapped__(1) == 2
    assert double_number(1) == 2


def test_direct_call_warns_beside_async_engine_and_client(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            with pytest.warns(StepfastWarning, match="'double_number_async' is called directly"):
                assert await double_number_async(1) == 2
            assert await engine.run(double_number_async, 2) == 4

    asyncio.run(main())
    with Client(url), pytest.warns(StepfastWarning, match="is called directly"):
        double_number(1)


def test_direct_call_warns_once_per_line() -> None:
    with Engine("memory:"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default", StepfastWarning)
        globals().pop("__warningregistry__", None)
        for n in range(3):
            double_number(n)
        double_number(4)
    assert len(caught) == 2


def test_filter_permits_direct_calls() -> None:
    with Engine("memory:"), warnings.catch_warnings():
        warnings.simplefilter("ignore", StepfastWarning)
        assert double_number(1) == 2


def test_sync_engine_warns_in_async_code(url: str) -> None:
    async def main() -> None:
        with Engine(url) as engine:
            with pytest.warns(
                StepfastWarning, match="blocks the event loop that runs in this thread"
            ) as warned:
                engine.run(sleep_briefly)
            assert {warning.filename for warning in warned} == {__file__}
            # a start that is durable before the caller waits blocks nothing
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", StepfastWarning)
                while not caught:
                    handle = engine.start(sleep_briefly)
            assert "blocks the event loop" in str(caught[0].message)
            with pytest.warns(StepfastWarning, match="blocks the event loop"):
                handle.result()
            # a call in a thread does not block the loop
            await asyncio.to_thread(engine.run, sleep_briefly)

    asyncio.run(main())
    with Engine(url) as engine:
        engine.run(sleep_briefly)


@pytest.fixture
def warnings_as_errors() -> Iterator[None]:
    """Makes warnings of Stepfast errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", StepfastWarning)
        yield


def test_blocked_loop_is_logged_if_warnings_are_errors(
    warnings_as_errors: None, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        with Engine("memory:") as engine:
            engine.run(sleep_briefly)

    asyncio.run(main())
    lines = [record for record in caplog.records if "blocks the event loop" in record.getMessage()]
    assert lines and all(record.levelno == logging.WARNING for record in lines)


#: A program that calls a workflow directly, three times in one line.
DIRECT_CALL_PROGRAM = """
from stepfast import Engine, workflow

@workflow
def double(n: int) -> int:
    return 2 * n

with Engine("memory:"):
    for n in range(3):
        double(n)
"""


def test_program_prints_warning_once() -> None:
    program = subprocess.run(
        [sys.executable, "-c", DIRECT_CALL_PROGRAM],
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT,
        check=True,
    )
    assert program.stderr.count("StepfastWarning: workflow 'double' is called directly") == 1
