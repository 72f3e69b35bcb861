"""What the branches of an execution wait for, once none of them runs.

If they wait for nothing but durable calls and each other, the execution can be suspended, and a replay that
misses a call will miss it for ever. Nobody can ask a future who will set it; but asyncio's own code waits for
futures that tasks set, and who waits can be seen.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Collection, Iterator
from types import AsyncGeneratorType, CodeType, CoroutineType, GeneratorType, MethodType
from typing import Any, Final, cast

from stepfast import _native

#: Some may go on by themselves.
OUTSIDE: Final = 0
#: All wait for the execution's own calls; some no longer than a limit that is not durable.
LIMITED: Final = 1
#: All wait for the execution's own calls, or for each other.
INSIDE: Final = 2

_FRAMED: Final[tuple[type[Any], ...]] = (CoroutineType, GeneratorType, AsyncGeneratorType)

#: Code of asyncio that waits until other tasks do something.
_TOGETHER: Final[frozenset[CodeType]] = frozenset(
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
    # some versions of Python do without one of them
    if hasattr(place, name)
)

_GATHERING: Final = getattr(asyncio.tasks, "_GatheringFuture", ())


def waits_of(tasks: Collection[asyncio.Future[Any]]) -> int:
    """What the tasks of an execution wait for."""
    return min((_waits_of(task, tasks) for task in tasks if not task.done()), default=OUTSIDE)


def _waits_of(task: Any, tasks: Collection[asyncio.Future[Any]]) -> int:
    chain = list(_chain(task.get_coro()))
    future = getattr(task, "_fut_waiter", None)
    is_together = bool(chain) and _code_of(chain[-1]) in _TOGETHER
    if not (_is_own(future, tasks) or (is_together and future is not None and not future.done())):
        return OUTSIDE
    return LIMITED if any(_is_limited(each) for each in chain) else INSIDE


def _is_own(future: Any, tasks: Collection[asyncio.Future[Any]]) -> bool:
    """True for a durable call, a task of the execution, and all of them together."""
    if isinstance(future, _native.Call):
        return future.is_durable
    if isinstance(future, _GATHERING):
        children: list[asyncio.Future[Any]] = future._children
        return not future.done() and all(child.done() or child in tasks for child in children)
    return future in tasks and not future.done()


def _chain(code: Any) -> Iterator[Any]:
    """What a task runs: a coroutine, what that awaits, and so on."""
    if type(code) is _native.Code:
        code = cast("Any", code).coroutine
    while code is not None:
        yield code
        following = next(
            (getattr(code, name) for name in ("cr_await", "gi_yieldfrom", "ag_await") if hasattr(code, name)),
            None,
        )
        if following is not None and not _is_framed(following):
            # what awaits an async generator, or an object with an __await__, does not say so
            within: list[Any] = gc.get_referents(following)
            following = next(filter(_is_framed, within), None)
        code = following


def _is_framed(code: Any) -> bool:
    return isinstance(code, _FRAMED)


def _code_of(code: Any) -> CodeType | None:
    names = ("cr_code", "gi_code", "ag_code")
    return next((getattr(code, name) for name in names if hasattr(code, name)), None)


def _is_limited(code: Any) -> bool:
    """True if it is in an asyncio.timeout, or is told how long to wait."""
    if _code_of(code) in _TOGETHER and code.cr_frame.f_locals.get("timeout") is not None:
        return True
    return any(
        isinstance(each, MethodType)
        and isinstance(each.__self__, asyncio.Timeout)
        and each.__self__.when() is not None
        for each in gc.get_referents(code)
    )


__all__ = ["INSIDE", "LIMITED", "OUTSIDE", "waits_of"]
