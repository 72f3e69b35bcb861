"""Calls side by side: `gather`, `map` and `as_completed`, which a replay repeats."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from inspect import isawaitable
from itertools import islice
from typing import Any, Generic, TypeVar, cast, overload

from stepfast._runtime.branch import current_branch, unwind_exception
from stepfast._runtime.threads.branches import Progress, run_in_threads
from stepfast._validation import bounds
from stepfast.errors import InvalidArgument

R = TypeVar("R", covariant=True)
R1 = TypeVar("R1")
R2 = TypeVar("R2")
R3 = TypeVar("R3")
R4 = TypeVar("R4")
T = TypeVar("T")

#: So many items of a sync `map` are worked on at a time.
THREADS = 16


@overload
async def gather(first: Awaitable[R1], second: Awaitable[R2], /) -> tuple[R1, R2]: ...


@overload
async def gather(
    first: Awaitable[R1], second: Awaitable[R2], third: Awaitable[R3], /
) -> tuple[R1, R2, R3]: ...


@overload
async def gather(
    first: Awaitable[R1], second: Awaitable[R2], third: Awaitable[R3], fourth: Awaitable[R4], /
) -> tuple[R1, R2, R3, R4]: ...


@overload
async def gather(*calls: Awaitable[R]) -> tuple[R, ...]: ...


@overload
def gather(first: Callable[[], R1], second: Callable[[], R2], /) -> tuple[R1, R2]: ...


@overload
def gather(
    first: Callable[[], R1], second: Callable[[], R2], third: Callable[[], R3], /
) -> tuple[R1, R2, R3]: ...


@overload
def gather(
    first: Callable[[], R1], second: Callable[[], R2], third: Callable[[], R3], fourth: Callable[[], R4], /
) -> tuple[R1, R2, R3, R4]: ...


@overload
def gather(*calls: Callable[[], R]) -> tuple[R, ...]: ...


def gather(*calls: Any) -> Any:
    """Carries out calls side by side and waits for all of them.

    Args:
        calls: In async code awaitables: `await gather(reserve(1), charge(2))`. In sync code functions without
            arguments, each of which runs in a thread: `gather(lambda: reserve(1), lambda: charge(2))`.

    Returns:
        Their outputs, in the order of the calls.

    Raises:
        Exception: What the first of them to fail has raised. In async code the others are cancelled, in sync
            code they are waited for.
        InvalidArgument: A call is none: a sync step that is written with its arguments has run already.
    """
    branch = current_branch()
    is_async = not calls or any(not callable(call) for call in calls)
    if branch is not None or not calls:
        is_async = is_on_loop()
    for number, call in enumerate(calls, 1):
        if not (isawaitable(call) if is_async else callable(call)):
            raise _no_call(number, calls)
    if is_async:
        return _gathered(calls)
    return tuple(run_in_threads(lambda call: call(), calls, len(calls) or 1))


def _no_call(number: int, calls: tuple[Any, ...]) -> InvalidArgument:
    """What to write instead of an argument of `gather` that cannot be waited for."""
    kind = type(calls[number - 1]).__qualname__
    for call in calls:
        if isinstance(call, Coroutine):
            # nobody awaits it any more
            call.close()
    if is_on_loop():
        return InvalidArgument(
            f"argument {number} of gather has the type {kind}, and must be something to await: write await "
            "gather(reserve(1), charge(2)) with async steps, reserve.in_thread(1) for a sync one"
        )
    return InvalidArgument(
        f"argument {number} of gather has the type {kind}, and must be a function without arguments: "
        "a step that is written with its arguments has run before gather. Write "
        "gather(lambda: reserve(1), lambda: charge(2)), or map(reserve, [1, 2])"
    )


@overload
async def map(  # type: ignore[overload-overlap] # what is to be awaited comes first
    function: Callable[[T], Awaitable[R]],
    items: Iterable[T],
    *,
    concurrency: int | None = None,
    progress: Progress | None = None,
) -> list[R]: ...


@overload
def map(
    function: Callable[[T], R],
    items: Iterable[T],
    *,
    concurrency: int | None = None,
    progress: Progress | None = None,
) -> list[R]: ...


def map(
    function: Callable[[Any], Any],
    items: Iterable[Any],
    *,
    concurrency: int | None = None,
    progress: Progress | None = None,
) -> Any:
    """Calls `function` for every item, side by side, and waits for all of them. With a `concurrency` there
    may be a million: beside the items and outputs themselves each takes about 200 bytes of memory.

    Args:
        function: A step, a workflow, a workflow with `options`, as in `send.options(queue="emails")`, or any
            function that calls some. In async code it is to be awaited.
        items: What it is called with, one by one.
        concurrency: So many at a time; in async code all at once by default, in sync code, where each takes a
            thread, 16. At least 1. A replay must find the same number.
        progress: Called whenever an item is done, with how many are and how many there are; not for what a
            replay repeats. What it raises fails the map. None by default.

    Returns:
        The outputs, in the order of the items.

    Raises:
        Exception: What the first of them to fail has raised; no further ones are begun.
        InvalidArgument: `concurrency` is less than 1.
    """
    if concurrency is not None:
        bounds.check_count("concurrency", concurrency, 1)
    items = list(items)
    if is_on_loop():
        return _mapped(function, items, concurrency or len(items), progress)
    return run_in_threads(function, items, THREADS if concurrency is None else concurrency, progress)


async def _mapped(
    function: Callable[[Any], Awaitable[R]], items: list[Any], concurrency: int, progress: Progress | None
) -> list[R]:
    """Calls it for so many items at a time: each has a task from its beginning to its end, and no longer. The
    tasks are made in the order of the items, so that each has the same place in a replay.
    """
    outputs: list[Any] = []
    places: dict[asyncio.Future[R], int] = {}
    ended: asyncio.Queue[asyncio.Future[R]] = asyncio.Queue()
    left = iter(items)
    branch = current_branch()
    try:
        while True:
            for item in islice(left, concurrency - len(places)):
                task = task_of(function(item))
                places[task] = len(outputs)
                outputs.append(None)
                task.add_done_callback(ended.put_nowait)
            if not places:
                return outputs
            task = await ended.get()
            place = places.pop(task)
            if is_failed(task):
                failed = task
                break
            outputs[place] = task.result()
            if progress is not None and (branch is None or not branch.is_replaying):
                progress(len(outputs) - len(places), len(items))
    finally:
        for task in places:
            task.cancel()
    return cast("list[R]", await _fail(failed, places))


async def _gathered(calls: Iterable[Awaitable[R]], made: Callable[[Iterable[R]], Any] = tuple) -> Any:
    tasks = [task_of(call) for call in calls]
    if not tasks:
        return made(())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failed = next((task for task in tasks if is_failed(task)), None)
    finally:
        for task in tasks:
            task.cancel()
    if failed is None:
        return made(task.result() for task in tasks)
    return await _fail(failed, tasks)


async def _fail(failed: asyncio.Future[Any], others: Iterable[asyncio.Future[Any]]) -> Any:
    """Raises what one has raised, when the others, which are cancelled, have ended."""
    if others := list(others):
        await asyncio.wait(others)
    branch = current_branch()
    if branch is not None and branch.stop_code:
        raise unwind_exception(branch.stop_code)
    return failed.result()


class as_completed(Generic[R]):
    """Awaitables in the order in which they come to their ends:
    `async for task in as_completed(calls): print(await task)`. A replay repeats it, unlike that of asyncio.

    Args:
        calls: Calls, coroutines or tasks.
    """

    def __init__(self, calls: Iterable[Awaitable[R]]) -> None:
        self._tasks = [task_of(call) for call in calls]

    async def __aiter__(self) -> AsyncIterator[asyncio.Future[R]]:
        ended: asyncio.Queue[asyncio.Future[R]] = asyncio.Queue()
        for task in self._tasks:
            task.add_done_callback(ended.put_nowait)
        for _ in self._tasks:
            yield await ended.get()


def task_of(call: Awaitable[R]) -> asyncio.Future[R]:
    """The task that awaits it: a branch of its own, from its creation on."""
    return asyncio.ensure_future(call)


def is_failed(task: asyncio.Future[Any]) -> bool:
    """True if it ended, and not with an output."""
    return task.done() and (task.cancelled() or task.exception() is not None)


def is_on_loop() -> bool:
    """True in async code."""
    branch = current_branch()
    return branch.is_on_loop if branch is not None else asyncio._get_running_loop() is not None


__all__ = ["as_completed", "gather", "map"]
