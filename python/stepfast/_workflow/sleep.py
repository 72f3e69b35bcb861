"""Durable waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, cast

from stepfast._runtime.branch import current_branch
from stepfast._runtime.waiting import wait_for_call
from stepfast._validation import bounds


def sleep(
    seconds: float = 0.0, *, minutes: float = 0.0, hours: float = 0.0, days: float = 0.0
) -> Awaitable[None]:
    """Waits: `sleep(5)` in sync code, `await sleep(5)` in async code.

    In a workflow it waits durably. A sleep that is longer than the engine's `suspend_after` ends when it is
    due, whatever crashes meanwhile; a shorter one begins again after a crash. Elsewhere it is `time.sleep` or
    `asyncio.sleep`.

    Args:
        seconds: How long, in seconds; never shorter than that. What is given in other units is added. A sleep
            that is not above 0 is over at once.
        minutes: Minutes to add.
        hours: Hours to add.
        days: Days to add.

    Returns:
        What to await, in async code; None in sync code, where the time has passed.

    Raises:
        InvalidArgument: It is no number.
    """
    # No checker knows which code calls this. Async code has to be told of an Awaitable; were it a Coroutine,
    # checkers would miss an `await` in sync code.
    if minutes or hours or days or type(seconds) is not float:
        for unit, given in (("seconds", seconds), ("minutes", minutes), ("hours", hours), ("days", days)):
            bounds.check_number(unit, given)
        seconds += 60.0 * (minutes + 60.0 * (hours + 24.0 * days))
    # what is computed may lie in the past, and is over then; NaN is greater than nothing
    if not seconds > 0.0:
        bounds.check_number("seconds", seconds)
        seconds = 0.0
    branch = current_branch()
    waits: Any = None
    if branch is not None:
        call = branch.sleep(seconds)
        waits = call if branch.is_on_loop else wait_for_call(call)
    elif asyncio._get_running_loop() is not None:
        waits = asyncio.sleep(seconds)
    else:
        time.sleep(seconds)
    return cast("Awaitable[None]", waits)


__all__ = ["sleep"]
