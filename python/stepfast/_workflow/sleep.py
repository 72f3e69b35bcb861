"""Durable sleeps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Any, cast

from stepfast._runtime.branch import current_branch
from stepfast._runtime.event_loop.asyncio_internals import current_loop
from stepfast._runtime.waiting import await_or_wait
from stepfast._validation import bounds
from stepfast._validation.durations import Duration, to_seconds
from stepfast._validation.times import instant_micros

# Type checkers cannot find out whether sync or async code calls `sleep`. The type is an Awaitable, so that
# async code can await it. If it were a Coroutine, type checkers would demand an `await` in sync code too.


def sleep(
    seconds: Duration = 0.0, *, minutes: float = 0.0, hours: float = 0.0, days: float = 0.0
) -> Awaitable[None]:
    """Waits for a time span: `sleep(5)` in sync code, `await sleep(5)` in async code.

    In a workflow the wait is durable. A sleep that is longer than the engine's `suspend_after` ends when it
    is due, even if the program crashes in between. A shorter sleep begins again after a crash. Outside of
    workflows, this is `time.sleep` or `asyncio.sleep`.

    Args:
        seconds: The time span, as seconds or as a `timedelta`. The sleep is never shorter than the sum of all
            units. A sum of 0 or less ends the sleep at once. 0 by default.
        minutes: Minutes to add.
        hours: Hours to add.
        days: Days to add.

    Returns:
        In async code an object to await. In sync code None, after the time has passed.

    Raises:
        InvalidArgument: A value is neither a number nor a `timedelta`.
    """
    if minutes or hours or days or type(seconds) is not float:
        seconds = to_seconds("seconds", seconds)
        for unit, given in (("minutes", minutes), ("hours", hours), ("days", days)):
            bounds.check_number(unit, given)
        seconds += 60.0 * (minutes + 60.0 * (hours + 24.0 * days))
    # a sleep of a negative time span ends at once; the comparison is also False for NaN, which `to_seconds`
    # rejects
    if not seconds > 0.0:
        seconds = max(0.0, to_seconds("seconds", seconds))
    branch = current_branch()
    waits: Any = None
    if branch is not None:
        call = branch.sleep(seconds)
        waits = await_or_wait(branch, call)
    else:
        waits = _sleep_outside(seconds)
    return cast("Awaitable[None]", waits)


def sleep_until(at: datetime) -> Awaitable[None]:
    """Waits until a point in time: `sleep_until(at)` in sync code, `await sleep_until(at)` in async code.

    In a workflow the wait is durable, as with `sleep`, and ends by the database's clock. Elsewhere it ends by
    this machine's clock.

    Args:
        at: The time, as a datetime with a time zone. A time that has passed ends the sleep at once.

    Returns:
        In async code an object to await. In sync code None, after the time has come.

    Raises:
        InvalidArgument: The value is no datetime, or has no time zone.
    """
    due_at = instant_micros("at", at)
    branch = current_branch()
    waits: Any = None
    if branch is not None:
        call = branch.sleep_until(due_at)
        waits = await_or_wait(branch, call)
    else:
        waits = _sleep_outside(max(0.0, (at - datetime.now(UTC)).total_seconds()))
    return cast("Awaitable[None]", waits)


def _sleep_outside(seconds: float) -> Any:
    """Sleeps in code outside of workflows. Returns an awaitable if an event loop runs in this thread."""
    if current_loop() is not None:
        return asyncio.sleep(seconds)
    return time.sleep(seconds)


__all__ = ["sleep", "sleep_until"]
