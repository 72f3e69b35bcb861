"""Durable waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, cast

from stepfast.branch import branch_var
from stepfast.handle import settle, settle_here


def sleep(seconds: float = 0.0, *, minutes: float = 0.0, hours: float = 0.0, days: float = 0.0) -> Any:
    """Waits, durably: after a crash the time that has passed counts, if the sleep is longer than the engine's
    `suspend_after`. In async code, await it. Outside of workflows it is `time.sleep` or `asyncio.sleep`.

    Args:
        seconds: How long; to it are added `minutes`, `hours` and `days`.
        minutes: See `seconds`.
        hours: See `seconds`.
        days: See `seconds`.
    """
    seconds += 60.0 * (minutes + 60.0 * (hours + 24.0 * days))
    branch = branch_var.get()
    if branch is None:
        is_on_loop = asyncio._get_running_loop() is not None
        return asyncio.sleep(seconds) if is_on_loop else time.sleep(seconds)
    call = branch.sleep(seconds)
    return cast("Awaitable[None]", settle(call)) if branch.is_on_loop else settle_here(call)


__all__ = ["sleep"]
