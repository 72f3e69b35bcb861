"""Durable sleeps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Any, cast

from stepfast._runtime.branch import current_branch
from stepfast._runtime.event_loop.asyncio_internals import current_loop
from stepfast._runtime.waiting import wait_for_call
from stepfast._validation import bounds
from stepfast._validation.durations import Duration, to_seconds
from stepfast._validation.times import instant_micros

# Type checkers cannot find out which code calls `sleep`. In async code they must see an Awaitable; with a
# Coroutine, they would miss an `await` in sync code.


def sleep(
    seconds: Duration = 0.0, *, minutes: float = 0.0, hours: float = 0.0, days: float = 0.0
) -> Awaitable[None]:
    """Waits for a time span: `sleep(5)` in sync code, `await sleep(5)` in async code.

    In a workflow the wait is durable. A sleep that is longer than the engine's `suspend_after` ends when it
    is due, even if the program crashes in between; a shorter one begins again after a crash. Elsewhere it is
    `time.sleep` or `asyncio.sleep`.

    Args:
        seconds: The time span, as seconds or as a `timedelta`; the sleep is never shorter. Other units are
            added to it. A sleep of 0 or less ends at once.
        minutes: Minutes to add.
        hours: Hours to add.
        days: Days to add.

    Returns:
        The object to await, in async code; None in sync code, after the time has passed.

    Raises:
        InvalidArgument: A value is neither a number nor a `timedelta`.
    """
    if minutes or hours or days or type(seconds) is not float:
        seconds = to_seconds("seconds", seconds)
        for unit, given in (("minutes", minutes), ("hours", hours), ("days", days)):
            bounds.check_number(unit, given)
        seconds += 60.0 * (minutes + 60.0 * (hours + 24.0 * days))
    # a computed time span may be negative, and ends at once; NaN is greater than nothing
    if not seconds > 0.0:
        seconds = max(0.0, to_seconds("seconds", seconds))
    branch = current_branch()
    waits: Any = None
    if branch is not None:
        call = branch.sleep(seconds)
        waits = call if branch.is_on_loop else wait_for_call(call)
    else:
        waits = _sleep_outside(seconds)
    return cast("Awaitable[None]", waits)


def sleep_until(at: datetime) -> Awaitable[None]:
    """Waits until a point in time: `sleep_until(at)` in sync code, `await sleep_until(at)` in async code.

    In a workflow the wait is durable, as that of `sleep`, and the time is that of the database's clock.
    Elsewhere it is that of this machine.

    Args:
        at: The time, as a datetime with a time zone. A time that has passed ends the sleep at once.

    Returns:
        The object to await, in async code; None in sync code, after the time has come.

    Raises:
        InvalidArgument: The value is no datetime, or has no time zone.
    """
    due_at = instant_micros("at", at)
    branch = current_branch()
    waits: Any = None
    if branch is not None:
        call = branch.sleep_until(due_at)
        waits = call if branch.is_on_loop else wait_for_call(call)
    else:
        waits = _sleep_outside(max(0.0, (at - datetime.now(UTC)).total_seconds()))
    return cast("Awaitable[None]", waits)


def _sleep_outside(seconds: float) -> Any:
    """Sleeps in code that belongs to no workflow."""
    if current_loop() is not None:
        return asyncio.sleep(seconds)
    return time.sleep(seconds)


__all__ = ["sleep", "sleep_until"]
