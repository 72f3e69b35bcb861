"""Async steps and workflows are coroutine functions, for those who ask before they call."""

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

NOTES: list[str] = []


@step
async def notes_async(text: str) -> None:
    NOTES.append(text)


@step
def notes_sync(text: str) -> None:
    NOTES.append(text)


@workflow
async def seen_async(text: str) -> None:
    await notes_async(text)


@workflow
def seen_sync(text: str) -> None:
    notes_sync(text)


class Seen(Instance):
    @step
    async def async_step(self) -> None: ...

    @step
    def sync_step(self) -> None: ...

    @workflow
    async def async_workflow(self) -> None: ...

    @workflow
    def sync_workflow(self) -> None: ...


SEEN = Seen("seen")
ASYNC = [notes_async, seen_async, SEEN.async_step, SEEN.async_workflow, seen_async.options(priority=None)]
SYNC = [notes_sync, seen_sync, SEEN.sync_step, SEEN.sync_workflow, seen_sync.options(priority=None)]


@pytest.mark.parametrize("made", [*ASYNC, *SYNC], ids=range(10))
def test_they_are_seen_as_what_they_are(made: Callable[..., object]) -> None:
    is_async = made in ASYNC
    assert asyncio.iscoroutinefunction(made) is is_async
    assert is_async_callable(made) is is_async
    if sys.version_info >= (3, 12):
        assert inspect.iscoroutinefunction(made) is is_async
    assert not hasattr(made, "nothing") and not hasattr(made, "__getstate_of__")


def test_a_framework_awaits_them() -> None:
    tasks = BackgroundTasks()
    tasks.add_task(notes_async, "async step")
    tasks.add_task(notes_sync, "sync step")
    tasks.add_task(seen_async, "async workflow")
    NOTES.clear()
    asyncio.run(tasks())
    assert NOTES == ["async step", "sync step", "async workflow"]


@pytest.mark.parametrize("retry_if", [notes_async, SEEN.async_step, functools.partial(notes_async.function)])
def test_one_is_refused_where_nothing_awaits_it(retry_if: Any) -> None:
    with pytest.raises(InvalidArgument, match="retry_if"):
        step(retry_if=retry_if)(lambda: None)
