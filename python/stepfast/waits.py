"""Durable waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, cast

from stepfast.awaited import awaited
from stepfast.branch import branch_var
from stepfast.handle import settle_here


def sleep(
    seconds: float = 0.0, *, minutes: float = 0.0, hours: float = 0.0, days: float = 0.0
) -> Awaitable[None]:
    """Waits: `sleep(5)` in sync code, `await sleep(5)` in async code.

    In a workflow it waits durably. A sleep that is longer than the engine's `suspend_after` ends when it is
    due, whatever crashes meanwhile; a shorter one begins again after a crash. Elsewhere it is `time.sleep` or
    `asyncio.sleep`.

    Args:
        seconds: How long; never shorter than that. What is given in other units is added.
        minutes: Minutes to add.
        hours: Hours to add.
        days: Days to add.

    Returns:
        What to await, in async code; None in sync code, where the time has passed.
    """
    # No checker knows which code calls this. Async code has to be told of an Awaitable; were it a Coroutine,
    # checkers would miss an `await` in sync code.
    seconds += 60.0 * (minutes + 60.0 * (hours + 24.0 * days))
    branch = branch_var.get()
    waits: Any = None
    if branch is not None:
        call = branch.sleep(seconds)
        waits = awaited(call, branch) if branch.is_on_loop else settle_here(call)
    elif asyncio._get_running_loop() is not None:
        waits = asyncio.sleep(seconds)
    else:
        time.sleep(seconds)
    return cast("Awaitable[None]", waits)


__all__ = ["sleep"]
