"""Concurrent calls that end in the same order in a replay: `gather`, `map` and `as_completed`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from itertools import islice
from typing import Any, Generic, TypeVar, cast, overload

from stepfast._options.batch_options import BATCH_OPTIONS
from stepfast._options.start_options import CheckedOptions
from stepfast._runtime.branch import current_branch, unwind_exception
from stepfast._runtime.threads.branches import Progress, run_in_threads
from stepfast._validation import bounds
from stepfast._workflow.batch.child_batch import AsyncChildBatch, submit_child_batch
from stepfast._workflow.batch.item_result import ItemResult
from stepfast._workflow.concurrency.calls import check_calls, is_failed, is_on_loop, make_task
from stepfast._workflow.workflow import Workflow, parts_of_child

R = TypeVar("R", covariant=True)
R1 = TypeVar("R1")
R2 = TypeVar("R2")
R3 = TypeVar("R3")
R4 = TypeVar("R4")
T = TypeVar("T")

#: The maximum number of concurrent calls of a sync `map` without a `concurrency`.
DEFAULT_THREADS = 16
#: The number of items from which on a `map` of a workflow submits a batch: as many as a full bundle has.
BATCH_THRESHOLD = 1_000


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
    """Makes calls concurrently, and waits for all of them.

    Args:
        calls: In async code the calls are awaitables: `await gather(reserve(1), charge(2))`. In sync code
            they are functions without arguments, each of which runs in a thread: `gather(lambda: reserve(1),
            lambda: charge(2))`.

    Returns:
        The outputs, in the order of the calls.

    Raises:
        Exception: The exception of the first call that fails. In async code the other calls are cancelled. In
            sync code the exception is raised after the other calls have ended.
        InvalidArgument: An argument is no such call. An example is `gather(reserve(1))` in sync code, where
            the step has run already.
    """
    if check_calls("gather", calls):
        return _gather_async(calls)
    return tuple(run_in_threads(lambda call: call(), calls, len(calls) or 1))


@overload
async def map(  # type: ignore[overload-overlap] # the overload for async code comes first
    function: Callable[[T], Awaitable[R]],
    items: Iterable[T],
    *,
    concurrency: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> list[R]: ...


@overload
def map(
    function: Callable[[T], R],
    items: Iterable[T],
    *,
    concurrency: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> list[R]: ...


def map(
    function: Callable[[Any], Any],
    items: Iterable[Any],
    *,
    concurrency: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Any:
    """Calls `function` for every item, concurrently, and waits for all calls. With a `concurrency`, a map may
    have a million items: each call takes about 200 bytes of memory beside its item and its output.

    In the code of a workflow, 1,000 or more calls of a workflow are the items of a batch, which costs much
    less than as many children: see `Workflow.submit_batch`. This holds without a `concurrency` and without a
    `progress`, and if the workflow's `options` are options of batches.

    Args:
        function: A step, a workflow, a workflow with `options`, as in `send.options(queue="emails")`, or any
            function that calls steps or workflows. In async code, its result is awaited.
        items: The arguments of the calls, one argument per call.
        concurrency: The maximum number of calls at a time, at least 1. By default, async code makes all calls
            at once. Sync code, where each call takes a thread, makes 16 calls at a time by default. A replay
            must use the same number.
        progress: A function that is called whenever a call has ended, with the number of ended calls and the
            number of all items. It is not called while a replay repeats recorded outcomes. An exception that
            it raises fails the map. None by default.

    Returns:
        The outputs, in the order of the items.

    Raises:
        Exception: The exception of the first call that fails. No further calls begin. In async code the other
            calls are cancelled. In sync code the exception is raised after they have ended. If the calls are
            the items of a batch, the exception is that of the first item, and is raised after all have ended.
        InvalidArgument: `concurrency` is less than 1.
    """
    if concurrency is not None:
        bounds.check_count("concurrency", concurrency, 1)
    items = list(items)
    if len(items) >= BATCH_THRESHOLD and concurrency is None and progress is None:
        child = _batchable_child(function)
        if child is not None:
            batch = submit_child_batch(*child, ((item,) for item in items), {})
            return _outputs_async(batch) if is_on_loop() else _outputs(batch.results())
    if is_on_loop():
        return _map_async(function, items, concurrency or len(items), progress)
    return run_in_threads(function, items, DEFAULT_THREADS if concurrency is None else concurrency, progress)


def _batchable_child(
    function: object,
) -> tuple[Workflow[..., Any], tuple[Any, ...], CheckedOptions | None] | None:
    """Returns the parts of a workflow whose calls here can be the items of a batch; None for any other
    function."""
    branch = current_branch()
    parts = None if branch is None else parts_of_child(function)
    if branch is None or parts is None:
        return None
    workflow, _, options = parts
    are_for_batches = options is None or options.values.keys() <= set(BATCH_OPTIONS)
    return parts if are_for_batches and workflow.is_async == branch.is_on_loop else None


def _outputs(results: list[ItemResult[Any]]) -> list[Any]:
    return [item.result() for item in results]


async def _outputs_async(submission: Awaitable[AsyncChildBatch[Any]]) -> list[Any]:
    batch = await submission
    return _outputs(await batch.results())


async def _map_async(
    function: Callable[[Any], Awaitable[R]], items: list[Any], concurrency: int, progress: Progress | None
) -> list[R]:
    """Calls `function` for at most `concurrency` items at a time. Each call has a task while it runs. The
    tasks are made in the order of the items, so that each task has the same position in a replay."""
    outputs: list[Any] = []
    indexes: dict[asyncio.Future[R], int] = {}
    ended: asyncio.Queue[asyncio.Future[R]] = asyncio.Queue()
    remaining = iter(items)
    branch = current_branch()
    try:
        while True:
            for item in islice(remaining, concurrency - len(indexes)):
                task = make_task(function(item))
                indexes[task] = len(outputs)
                outputs.append(None)
                task.add_done_callback(ended.put_nowait)
            if not indexes:
                return outputs
            task = await ended.get()
            index = indexes.pop(task)
            if is_failed(task):
                failed = task
                break
            outputs[index] = task.result()
            if progress is not None and (branch is None or not branch.is_replaying):
                progress(len(outputs) - len(indexes), len(items))
    finally:
        for task in indexes:
            task.cancel()
    return cast("list[R]", await _raise_after(failed, indexes))


async def _gather_async(calls: Iterable[Awaitable[R]], collect: Callable[[Iterable[R]], Any] = tuple) -> Any:
    tasks = [make_task(call) for call in calls]
    if not tasks:
        return collect(())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failed = next((task for task in tasks if is_failed(task)), None)
    finally:
        for task in tasks:
            task.cancel()
    if failed is None:
        return collect(task.result() for task in tasks)
    return await _raise_after(failed, tasks)


async def _raise_after(failed: asyncio.Future[Any], others: Iterable[asyncio.Future[Any]]) -> Any:
    """Waits for the ends of the other tasks, which the caller has cancelled, and raises the exception of the
    failed task."""
    if others := list(others):
        await asyncio.wait(others)
    branch = current_branch()
    if branch is not None and branch.stop_code:
        raise unwind_exception(branch.stop_code)
    return failed.result()


class as_completed(Generic[R]):
    """An async iterator over awaitables, in the order in which they end:
    `async for task in as_completed(calls): print(await task)`. A replay repeats this order, unlike that of
    `asyncio.as_completed`.

    Args:
        calls: The awaitables: calls of steps or workflows, coroutines or tasks.
    """

    def __init__(self, calls: Iterable[Awaitable[R]]) -> None:
        self._tasks = [make_task(call) for call in calls]

    async def __aiter__(self) -> AsyncIterator[asyncio.Future[R]]:
        ended: asyncio.Queue[asyncio.Future[R]] = asyncio.Queue()
        for task in self._tasks:
            task.add_done_callback(ended.put_nowait)
        for _ in self._tasks:
            yield await ended.get()


__all__ = ["as_completed", "gather", "map"]
