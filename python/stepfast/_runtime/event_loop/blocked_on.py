"""Finds out for what the branches of an execution wait while none of them runs.

If the branches wait only for durable calls and for each other, the execution can be suspended. And if this
happens in a replay, the code will never make the recorded calls that it has not repeated yet. A future does
not say which code will set it. But asyncio's own code waits for futures that tasks set, and its waits are
visible.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, Final, cast

from stepfast import _native
from stepfast._runtime.event_loop.asyncio_internals import (
    COOPERATIVE_WAITS,
    FUT_WAITER,
    GATHERING_FUTURE,
    await_chain,
    code_of,
    gathered_futures,
    is_time_limited,
)

#: At least one branch waits for something outside of the execution.
EXTERNAL: Final = 0
#: All branches wait for durable calls or for each other, but at least one has a time limit that is not
#: durable.
TIME_LIMITED: Final = 1
#: All branches wait for durable calls or for each other.
DURABLE_CALLS: Final = 2


def blocked_on(tasks: Collection[asyncio.Future[Any]]) -> int:
    """Returns for what the tasks of an execution wait: `EXTERNAL`, `TIME_LIMITED` or `DURABLE_CALLS`."""
    return min((_task_blocked_on(task, tasks) for task in tasks if not task.done()), default=EXTERNAL)


def _task_blocked_on(task: Any, tasks: Collection[asyncio.Future[Any]]) -> int:
    code: Any = task.get_coro()
    if type(code) is _native.BranchCoroutine:
        code = cast("Any", code).coroutine
    chain = list(await_chain(code))
    future = getattr(task, FUT_WAITER, None)
    is_cooperative = bool(chain) and code_of(chain[-1]) in COOPERATIVE_WAITS
    if not (_is_own(future, tasks) or (is_cooperative and future is not None and not future.done())):
        return EXTERNAL
    return TIME_LIMITED if any(is_time_limited(referent) for referent in chain) else DURABLE_CALLS


def _is_own(future: Any, tasks: Collection[asyncio.Future[Any]]) -> bool:
    """Returns whether the future is a durable call, a task of the execution, or a `gather` of such
    futures."""
    if isinstance(future, _native.Call):
        return future.is_durable
    if isinstance(future, GATHERING_FUTURE):
        return not future.done() and all(child.done() or child in tasks for child in gathered_futures(future))
    return future in tasks and not future.done()


__all__ = ["DURABLE_CALLS", "EXTERNAL", "TIME_LIMITED", "blocked_on"]
