"""Time limits of step attempts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import Context, copy_context
from typing import Any, TypeVar

from stepfast._runtime.branch import current_code, unwind_exception

R = TypeVar("R")


async def run_within(seconds: float, body: Awaitable[R]) -> R:
    """Awaits `body`. After `seconds`, cancels it and raises `TimeoutError`."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await body
    except TimeoutError:
        if limit.expired():
            raise attempt_timeout(seconds) from None
        raise


def begin_in_thread(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls the body of a step in the current thread, unless the run was stopped before this thread began."""
    current = current_code.get()
    if isinstance(current, tuple) and not current[1].can_begin:
        raise unwind_exception(current[0].stop_code)
    return function(*args, **kwargs)


def call_within(
    seconds: float, function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> R:
    """Calls `function` in a thread of its own, and raises `TimeoutError` after `seconds`.

    A thread cannot be stopped: it continues after the timeout, and its result is dropped.
    """
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
            raise attempt_timeout(seconds) from None
        raise
    finally:
        # the traceback of the raised exception refers to this frame, which would make a reference cycle
        del outcome


def _settle(
    outcome: Future[R],
    context: Context,
    function: Callable[..., R],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Calls the function in this new thread, and stores its result or its exception."""
    try:
        outcome.set_result(context.run(begin_in_thread, function, *args, **kwargs))
    except BaseException as raised:
        outcome.set_exception(raised)
    finally:
        del outcome


def attempt_timeout(seconds: float) -> TimeoutError:
    """Returns the exception of an attempt that exceeded its time limit."""
    return TimeoutError(f"the attempt took longer than {seconds} s")
