"""Async steps and workflows as coroutine functions, which libraries recognize before a call."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import BackgroundTasks
from starlette._utils import is_async_callable

from stepfast import Instance, InvalidArgument, step, workflow

RECORDED_TEXTS: list[str] = []


@step
async def records_text_async(text: str) -> None:
    RECORDED_TEXTS.append(text)


@step
def records_text_sync(text: str) -> None:
    RECORDED_TEXTS.append(text)


@workflow
async def async_recorder(text: str) -> None:
    await records_text_async(text)


@workflow
def sync_recorder(text: str) -> None:
    records_text_sync(text)


class Recognized(Instance):
    @step
    async def async_step(self) -> None: ...

    @step
    def sync_step(self) -> None: ...

    @workflow
    async def async_workflow(self) -> None: ...

    @workflow
    def sync_workflow(self) -> None: ...


INSTANCE = Recognized("recognized")
ASYNC_FUNCTIONS = [
    records_text_async,
    async_recorder,
    INSTANCE.async_step,
    INSTANCE.async_workflow,
    async_recorder.options(priority=None),
]
SYNC_FUNCTIONS = [
    records_text_sync,
    sync_recorder,
    INSTANCE.sync_step,
    INSTANCE.sync_workflow,
    sync_recorder.options(priority=None),
]


@pytest.mark.parametrize("function", [*ASYNC_FUNCTIONS, *SYNC_FUNCTIONS], ids=range(10))
def test_functions_are_recognized_as_async_or_sync(function: Callable[..., object]) -> None:
    is_async = function in ASYNC_FUNCTIONS
    assert asyncio.iscoroutinefunction(function) is is_async
    assert is_async_callable(function) is is_async
    if sys.version_info >= (3, 12):
        assert inspect.iscoroutinefunction(function) is is_async
    assert not hasattr(function, "nothing") and not hasattr(function, "__getstate_of__")


def test_framework_awaits_async_steps_and_workflows() -> None:
    tasks = BackgroundTasks()
    tasks.add_task(records_text_async, "async step")
    tasks.add_task(records_text_sync, "sync step")
    tasks.add_task(async_recorder, "async workflow")
    RECORDED_TEXTS.clear()
    asyncio.run(tasks())
    assert RECORDED_TEXTS == ["async step", "sync step", "async workflow"]


@pytest.mark.parametrize(
    "retry_if", [records_text_async, INSTANCE.async_step, functools.partial(records_text_async.function)]
)
def test_async_retry_condition_is_refused(retry_if: Any) -> None:
    with pytest.raises(InvalidArgument, match="retry_if"):
        step(retry_if=retry_if)(lambda: None)
