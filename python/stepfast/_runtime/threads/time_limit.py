"""Attempts of steps that must not take longer than a limit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import Context, copy_context
from typing import Any, TypeVar

from stepfast._runtime.branch import here_var, unwinding

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


def begun_in_thread(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """The body of a step, in a thread of its own, which may come late: then it does not begin."""
    here = here_var.get()
    if isinstance(here, tuple) and not here[1].may_begin:
        raise unwinding(here[0].stopped)
    return function(*args, **kwargs)


def within_thread(
    seconds: float, function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> R:
    """Calls `function` in a thread of its own and waits for so long, then raises `TimeoutError`. A thread
    cannot be stopped: it goes on, and what it comes to is dropped."""
    outcome: Future[R] = Future()
    thread = threading.Thread(
        target=_settle,
        args=(outcome, copy_context(), function, args, kwargs),
        name=f"stepfast-{function.__qualname__}",
        daemon=True,
    )
    thread.start()
    try:
        return outcome.result(seconds)
    except TimeoutError:
        if not outcome.done():
            raise too_long(seconds) from None
        raise
    finally:
        # the traceback of what it was raised with has this frame
        del outcome


def _settle(
    outcome: Future[R],
    context: Context,
    function: Callable[..., R],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """What the thread does."""
    try:
        outcome.set_result(context.run(begun_in_thread, function, *args, **kwargs))
    except BaseException as raised:
        outcome.set_exception(raised)
    finally:
        del outcome


def too_long(seconds: float) -> TimeoutError:
    """What an attempt that took longer fails with."""
    return TimeoutError(f"the attempt took longer than {seconds} s")
