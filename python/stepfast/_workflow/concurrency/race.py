"""`race`: waits for the first of several calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar, overload

from stepfast._runtime.branch import current_branch, unwind_exception
from stepfast._runtime.threads.races import race_in_threads
from stepfast._workflow.concurrency.calls import check_calls, make_task
from stepfast.errors import InvalidArgument

R = TypeVar("R", covariant=True)
R1 = TypeVar("R1")
R2 = TypeVar("R2")
R3 = TypeVar("R3")
R4 = TypeVar("R4")


@overload
async def race(
    first: Awaitable[R1], second: Awaitable[R2], /
) -> tuple[Literal[0], R1] | tuple[Literal[1], R2]: ...


@overload
async def race(
    first: Awaitable[R1], second: Awaitable[R2], third: Awaitable[R3], /
) -> tuple[Literal[0], R1] | tuple[Literal[1], R2] | tuple[Literal[2], R3]: ...


@overload
async def race(
    first: Awaitable[R1], second: Awaitable[R2], third: Awaitable[R3], fourth: Awaitable[R4], /
) -> tuple[Literal[0], R1] | tuple[Literal[1], R2] | tuple[Literal[2], R3] | tuple[Literal[3], R4]: ...


@overload
async def race(*calls: Awaitable[R]) -> tuple[int, R]: ...


@overload
def race(
    first: Callable[[], R1], second: Callable[[], R2], /
) -> tuple[Literal[0], R1] | tuple[Literal[1], R2]: ...


@overload
def race(
    first: Callable[[], R1], second: Callable[[], R2], third: Callable[[], R3], /
) -> tuple[Literal[0], R1] | tuple[Literal[1], R2] | tuple[Literal[2], R3]: ...


@overload
def race(
    first: Callable[[], R1], second: Callable[[], R2], third: Callable[[], R3], fourth: Callable[[], R4], /
) -> tuple[Literal[0], R1] | tuple[Literal[1], R2] | tuple[Literal[2], R3] | tuple[Literal[3], R4]: ...


@overload
def race(*calls: Callable[[], R]) -> tuple[int, R]: ...


def race(*calls: Any) -> Any:
    """Makes calls concurrently until the first of them ends, and abandons the others. A replay has the same
    winner.

    A message that an abandoned call has not received stays pending. In async code the other calls are
    cancelled. In sync code an exception, whose class derives from `BaseException`, unwinds their functions.
    `finally` blocks run, but a durable call in them raises the exception again. Nothing more is recorded.

    Args:
        calls: In async code the calls are awaitables: `await race(receive("paid"), sleep(60))`. In sync code
            they are functions without arguments, each of which runs in a thread of its own:
            `race(lambda: receive("paid"), lambda: sleep(60))`.

    Returns:
        The index and the output of the call that ends first, after the other calls have unwound. In sync code
        the body of a step cannot be interrupted: if it runs in an abandoned call, it ends first, and its
        outcome is dropped. Outside of workflows sync code does not wait for the other calls, which continue.

    Raises:
        Exception: The exception of the call that ends first, if that call fails. Exceptions of the other
            calls are dropped.
        InvalidArgument: There are no calls, or an argument is no such call. An example is
            `race(receive("paid"))` in sync code, where the message was received already.
    """
    if not calls:
        raise InvalidArgument("race needs at least one call")
    is_async = check_calls("race", calls)
    return _race_async(calls) if is_async else race_in_threads(calls)


async def _race_async(calls: tuple[Awaitable[Any], ...]) -> tuple[int, Any]:
    tasks = [make_task(call) for call in calls]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        winner = next(index for index, task in enumerate(tasks) if task.done())
    finally:
        await _abandon(tasks)
    branch = current_branch()
    if branch is not None and branch.stop_code:
        raise unwind_exception(branch.stop_code)
    return winner, tasks[winner].result()


async def _abandon(tasks: list[asyncio.Future[Any]]) -> None:
    """Cancels the tasks that have not ended, and waits for their ends."""
    others = [task for task in tasks if not task.done()]
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)
    for task in tasks:
        if task.done() and not task.cancelled():
            # read, so that asyncio does not report an exception that the race has dropped
            task.exception()


__all__ = ["race"]
