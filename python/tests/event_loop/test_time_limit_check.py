"""Warnings at the definition of workflows that limit their calls by the clock of the event loop."""

import asyncio
import asyncio as aio
import inspect
import warnings
from asyncio import wait_for as within
from typing import Any

import pytest

import stepfast
from stepfast import StepfastWarning, step, workflow


async def use_timeout() -> None:
    async with asyncio.timeout(1):
        pass


async def use_timeout_at() -> None:
    async def branch() -> None:
        async with aio.timeout_at(1):
            pass

    await branch()


async def use_wait_for() -> None:
    if __debug__:
        await within(asyncio.sleep(0), 1)


async def use_local_import() -> None:
    import asyncio

    async with asyncio.timeout(1):
        pass


class Shop:
    async def method(self) -> None:
        await aio.wait_for(asyncio.sleep(0), timeout=1)


@pytest.mark.parametrize(
    ("function", "line", "limit", "alternative"),
    [
        (use_timeout, 1, "asyncio.timeout,", "stepfast.timeout"),
        (use_timeout_at, 2, "asyncio.timeout_at,", "stepfast.timeout"),
        (use_wait_for, 2, "asyncio.wait_for,", "stepfast.wait_for"),
        (use_local_import, 3, "asyncio.timeout,", "stepfast.timeout"),
        (Shop.method, 1, "asyncio.wait_for,", "stepfast.wait_for"),
    ],
)
def test_time_limit_causes_a_warning_at_its_line(
    function: Any, line: int, limit: str, alternative: str
) -> None:
    with pytest.warns(StepfastWarning) as warnings_shown:
        workflow(name=f"limited by {function.__name__}")(function)
    [warning] = warnings_shown
    message = str(warning.message)
    assert f"limited by {function.__name__}" in message and limit in message, message
    assert message.endswith(alternative), message
    assert warning.filename == __file__
    assert warning.lineno == inspect.getsourcelines(function)[1] + line


async def use_stepfast_limits() -> None:
    async with stepfast.timeout(1):
        await stepfast.wait_for(asyncio.sleep(0), 1)

    @step
    async def inner() -> None:
        async with asyncio.timeout(1):
            pass


def use_wait_for_in_sync_code() -> None:
    asyncio.run(asyncio.wait_for(asyncio.sleep(0), 1))


def test_other_code_causes_no_warning() -> None:
    generated: dict[str, Any] = {}
    exec("import asyncio\nasync def generated():\n    await asyncio.wait_for(None, 1)", generated)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for function in (use_stepfast_limits, use_wait_for_in_sync_code, generated["generated"]):
            workflow(name=f"not limited by {function.__name__}")(function)
