"""Finds out what the branches of an execution are blocked on while none of them runs.

If they wait for nothing but durable calls and each other, the execution can be suspended, and a replay that
has not repeated a recorded call never will. A future does not say which code will set it. But asyncio's own
code waits for futures that tasks set, and its waits are visible.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Collection, Iterator
from types import AsyncGeneratorType, CodeType, CoroutineType, GeneratorType, MethodType
from typing import Any, Final, cast

from stepfast import _native

#: At least one branch waits for something outside of the execution.
EXTERNAL: Final = 0
#: All wait for the execution's own calls; at least one has a time limit that is not durable.
TIME_LIMITED: Final = 1
#: All wait for the execution's own calls, or for each other.
DURABLE_CALLS: Final = 2

_FRAME_TYPES: Final[tuple[type[Any], ...]] = (CoroutineType, GeneratorType, AsyncGeneratorType)

#: Code of asyncio that waits until other tasks act.
_COOPERATIVE_WAITS: Final[frozenset[CodeType]] = frozenset(
    getattr(place, name).__code__
    for place, names in (
        (asyncio.Queue, ("get", "put")),
        (asyncio.Lock, ("acquire",)),
        (asyncio.Event, ("wait",)),
        (asyncio.Condition, ("wait",)),
        (asyncio.Semaphore, ("acquire",)),
        (asyncio.TaskGroup, ("__aexit__", "_aexit")),
        (asyncio.tasks, ("wait_for", "_wait", "_cancel_and_wait")),
    )
    for name in names
    # not every version of Python has all of them
    if hasattr(place, name)
)

_GATHERING_FUTURE: Final = getattr(asyncio.tasks, "_GatheringFuture", ())


def blocked_on(tasks: Collection[asyncio.Future[Any]]) -> int:
    """Returns what the tasks of an execution are blocked on: `EXTERNAL`, `TIME_LIMITED` or
    `DURABLE_CALLS`."""
    return min((_task_blocked_on(task, tasks) for task in tasks if not task.done()), default=EXTERNAL)


def _task_blocked_on(task: Any, tasks: Collection[asyncio.Future[Any]]) -> int:
    chain = list(_await_chain(task.get_coro()))
    future = getattr(task, "_fut_waiter", None)
    is_cooperative = bool(chain) and _code_of(chain[-1]) in _COOPERATIVE_WAITS
    if not (_is_own(future, tasks) or (is_cooperative and future is not None and not future.done())):
        return EXTERNAL
    return TIME_LIMITED if any(_is_time_limited(referent) for referent in chain) else DURABLE_CALLS


def _is_own(future: Any, tasks: Collection[asyncio.Future[Any]]) -> bool:
    """Returns whether the future is a durable call, a task of the execution, or a `gather` of such
    futures."""
    if isinstance(future, _native.Call):
        return future.is_durable
    if isinstance(future, _GATHERING_FUTURE):
        children: list[asyncio.Future[Any]] = future._children
        return not future.done() and all(child.done() or child in tasks for child in children)
    return future in tasks and not future.done()


def _await_chain(code: Any) -> Iterator[Any]:
    """Yields the code that a task runs: its coroutine, the awaitable of that, and so on."""
    if type(code) is _native.BranchCoroutine:
        code = cast("Any", code).coroutine
    while code is not None:
        yield code
        awaited = next(
            (getattr(code, name) for name in ("cr_await", "gi_yieldfrom", "ag_await") if hasattr(code, name)),
            None,
        )
        if awaited is not None and not _has_frame(awaited):
            # an awaited async generator, or an object with an __await__, does not expose the awaited code
            referents: list[Any] = gc.get_referents(awaited)
            awaited = next(filter(_has_frame, referents), None)
        code = awaited


def _has_frame(code: Any) -> bool:
    return isinstance(code, _FRAME_TYPES)


def _code_of(code: Any) -> CodeType | None:
    names = ("cr_code", "gi_code", "ag_code")
    return next((getattr(code, name) for name in names if hasattr(code, name)), None)


def _is_time_limited(code: Any) -> bool:
    """Returns whether the code is in an `asyncio.timeout`, or waits with a timeout of its own."""
    if _code_of(code) in _COOPERATIVE_WAITS and code.cr_frame.f_locals.get("timeout") is not None:
        return True
    return any(
        isinstance(referent, MethodType)
        and isinstance(referent.__self__, asyncio.Timeout)
        and referent.__self__.when() is not None
        for referent in gc.get_referents(code)
    )


__all__ = ["DURABLE_CALLS", "EXTERNAL", "TIME_LIMITED", "blocked_on"]
