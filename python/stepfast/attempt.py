"""Attempts of steps that must not take longer than a limit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any, TypeVar

R = TypeVar("R")


async def within(seconds: float, body: Awaitable[R]) -> R:
    """Awaits `body` for so long, then cancels it and raises `TimeoutError`."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await body
    except TimeoutError:
        if limit.expired():
            raise too_long(seconds) from None
        raise


def within_thread(
    seconds: float, function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> R:
    """Calls `function` in a thread of its own and waits for so long, then raises `TimeoutError`. A thread
    cannot be stopped: it goes on, and what it comes to is dropped."""
    outcome: Future[R] = Future()
    context = copy_context()

    def run() -> None:
        try:
            outcome.set_result(context.run(function, *args, **kwargs))
        except BaseException as raised:
            outcome.set_exception(raised)

    threading.Thread(target=run, name=f"stepfast-{function.__qualname__}", daemon=True).start()
    try:
        return outcome.result(seconds)
    except TimeoutError:
        if not outcome.done():
            raise too_long(seconds) from None
        raise


def too_long(seconds: float) -> TimeoutError:
    """What an attempt that took longer fails with."""
    return TimeoutError(f"the attempt took longer than {seconds} s")
