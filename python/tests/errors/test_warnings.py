"""Warnings of programs that lose durability, or block an event loop."""

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
def warned_doubles(n: int) -> int:
    return 2 * n


@workflow
async def warned_doubles_async(n: int) -> int:
    return 2 * n


@step
def calls_in_step(n: int) -> int:
    return warned_doubles(n)


@workflow
def calls_child(n: int) -> int:
    return warned_doubles(n) + calls_in_step(n)


@workflow
def sleeps_a_little() -> None:
    sleep(0.05)


class Shop(Instance):
    @workflow
    def sells(self, n: int) -> int:
        return n


@pytest.fixture
def shop() -> Shop:
    return Shop("warned")


def test_direct_call_is_warned_of_while_an_engine_is_open(shop: Shop) -> None:
    assert warned_doubles(1) == 2
    with Engine("memory:") as engine:
        with pytest.warns(StepfastWarning, match="'warned_doubles' is called directly while") as warned:
            assert warned_doubles(1) == 2
        assert warned[0].filename == __file__
        with pytest.warns(StepfastWarning, match="'Shop.sells' is called directly") as warned:
            assert shop.sells(3) == 3
        assert warned[0].filename == __file__
        # calls of the code of executions are no direct calls
        assert engine.run(calls_child, 2) == 8
        assert engine.run(warned_doubles, 2) == 4
        assert engine.start(calls_child, 2).result() == 8
        assert warned_doubles.__wrapped__(1) == 2
    assert warned_doubles(1) == 2


def test_direct_call_is_warned_of_beside_async_engines_and_clients(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            with pytest.warns(StepfastWarning, match="'warned_doubles_async' is called directly"):
                assert await warned_doubles_async(1) == 2
            assert await engine.run(warned_doubles_async, 2) == 4

    asyncio.run(main())
    with Client(url), pytest.warns(StepfastWarning, match="is called directly"):
        warned_doubles(1)


def test_direct_call_is_warned_of_once_for_each_place() -> None:
    with Engine("memory:"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default", StepfastWarning)
        globals().pop("__warningregistry__", None)
        for n in range(3):
            warned_doubles(n)
        warned_doubles(4)
    assert len(caught) == 2


def test_direct_calls_are_permitted_by_a_filter() -> None:
    with Engine("memory:"), warnings.catch_warnings():
        warnings.simplefilter("ignore", StepfastWarning)
        assert warned_doubles(1) == 2


def test_sync_engine_in_async_code_is_warned_of(url: str) -> None:
    async def main() -> None:
        with Engine(url) as engine:
            with pytest.warns(
                StepfastWarning, match="blocks the event loop that runs in this thread"
            ) as warned:
                engine.run(sleeps_a_little)
            assert {warning.filename for warning in warned} == {__file__}
            with pytest.warns(StepfastWarning, match="blocks the event loop"):
                handle = engine.start(sleeps_a_little)
            with pytest.warns(StepfastWarning, match="blocks the event loop"):
                handle.result()
            # in a thread the loop goes on
            await asyncio.to_thread(engine.run, sleeps_a_little)

    asyncio.run(main())
    with Engine(url) as engine:
        engine.run(sleeps_a_little)


@pytest.fixture
def errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", StepfastWarning)
        yield


def test_blocked_loop_is_logged_where_warnings_are_errors(
    errors: None, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        with Engine("memory:") as engine:
            engine.run(sleeps_a_little)

    asyncio.run(main())
    lines = [record for record in caplog.records if "blocks the event loop" in record.getMessage()]
    assert lines and all(record.levelno == logging.WARNING for record in lines)


PROGRAM = """
from stepfast import Engine, workflow

@workflow
def doubles(n: int) -> int:
    return 2 * n

with Engine("memory:"):
    for n in range(3):
        doubles(n)
"""


def test_program_shows_the_warning_once() -> None:
    program = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=HANG_TIMEOUT, check=True
    )
    assert program.stderr.count("StepfastWarning: workflow 'doubles' is called directly") == 1
