"""Workflows that limit their calls by the clock of the loop are warned of when they are defined."""

import asyncio
import asyncio as aio
import inspect
import warnings
from asyncio import wait_for as within
from typing import Any

import pytest

import stepfast
from stepfast import StepfastWarning, step, workflow


async def by_timeout() -> None:
    async with asyncio.timeout(1):
        pass


async def by_timeout_at() -> None:
    async def branch() -> None:
        async with aio.timeout_at(1):
            pass

    await branch()


async def by_wait_for() -> None:
    if __debug__:
        await within(asyncio.sleep(0), 1)


async def by_local_import() -> None:
    import asyncio

    async with asyncio.timeout(1):
        pass


class Shop:
    async def method(self) -> None:
        await aio.wait_for(asyncio.sleep(0), timeout=1)


@pytest.mark.parametrize(
    ("function", "line", "limit", "instead"),
    [
        (by_timeout, 1, "asyncio.timeout,", "stepfast.timeout"),
        (by_timeout_at, 2, "asyncio.timeout_at,", "stepfast.timeout"),
        (by_wait_for, 2, "asyncio.wait_for,", "stepfast.wait_for"),
        (by_local_import, 3, "asyncio.timeout,", "stepfast.timeout"),
        (Shop.method, 1, "asyncio.wait_for,", "stepfast.wait_for"),
    ],
)
def test_limits_are_warned_of_where_they_are(function: Any, line: int, limit: str, instead: str) -> None:
    with pytest.warns(StepfastWarning) as warned:
        workflow(name=f"warned of {function.__name__}")(function)
    [warning] = warned
    said = str(warning.message)
    assert f"warned of {function.__name__}" in said and limit in said and said.endswith(instead), said
    assert warning.filename == __file__
    assert warning.lineno == inspect.getsourcelines(function)[1] + line


async def by_stepfast() -> None:
    async with stepfast.timeout(1):
        await stepfast.wait_for(asyncio.sleep(0), 1)

    @step
    async def inner() -> None:
        async with asyncio.timeout(1):
            pass


def in_sync_code() -> None:
    asyncio.run(asyncio.wait_for(asyncio.sleep(0), 1))


def test_other_code_is_not_warned_of() -> None:
    generated: dict[str, Any] = {}
    exec("import asyncio\nasync def generated():\n    await asyncio.wait_for(None, 1)", generated)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for function in (by_stepfast, in_sync_code, generated["generated"]):
            workflow(name=f"not warned of {function.__name__}")(function)
