"""Time limits that a replay repeats."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import TracebackType
from typing import TYPE_CHECKING, Final, NoReturn, Self, TypeVar

from stepfast._runtime.branch import current_branch
from stepfast._validation.durations import Duration, to_seconds
from stepfast._workflow.sleep import sleep
from stepfast.errors import InvalidArgument

R = TypeVar("R")


class timeout:
    """A limit on how long the code in its block may wait: `async with stepfast.timeout(30): ...`.

    In a workflow the limit is a durable sleep beside the code. A replay after a crash times out at the same
    place, and the time during which no worker ran the execution counts. Elsewhere this is `asyncio.timeout`.

    Args:
        seconds: The limit, as seconds or as a `timedelta`; None for no limit. A limit of 0 or less passes at
            once.

    Raises:
        TimeoutError: The limit has passed. The awaited call was cancelled.
        InvalidArgument: The limit is neither a number nor a `timedelta`, or the workflow is sync. Threads
            cannot be interrupted; in sync workflows, `@step(timeout=...)` limits a step.
    """

    def __init__(self, seconds: Duration | None) -> None:
        self._seconds = None if seconds is None else to_seconds("seconds", seconds)
        self._plain: asyncio.Timeout | None = None
        self._timer: asyncio.Task[None] | None = None
        self._is_expired = False

    if not TYPE_CHECKING:
        # hidden from type checkers, so that they reject `with stepfast.timeout(...)`

        def __enter__(self) -> NoReturn:
            raise InvalidArgument(
                "stepfast.timeout is for async code: `async with stepfast.timeout(...)`; in a sync workflow "
                "@step(timeout=...) limits a step"
            )

        def __exit__(self, *_: object) -> None: ...

    async def __aenter__(self) -> Self:
        branch = current_branch()
        if branch is None:
            self._plain = asyncio.timeout(self._seconds)
            await self._plain.__aenter__()
        elif not branch.is_on_loop:
            raise InvalidArgument("stepfast.timeout is for async workflows; @step(timeout=...) limits a step")
        elif self._seconds is not None:
            task = asyncio.current_task()
            assert task is not None
            self._task, self._cancelling = task, task.cancelling()
            self._timer = asyncio.get_running_loop().create_task(self._expire(self._seconds))
        return self

    async def _expire(self, seconds: float) -> None:
        await sleep(seconds)
        self._is_expired = True
        self._task.cancel()

    def expired(self) -> bool:
        """Returns whether the limit has passed."""
        return self._plain.expired() if self._plain is not None else self._is_expired

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._plain is not None:
            await self._plain.__aexit__(kind, error, trace)
            return
        if self._timer is None:
            return
        if not self._is_expired:
            # the cancellation of the timer is recorded before the code continues
            self._timer.cancel()
            return
        is_ours = self._task.uncancel() <= self._cancelling
        if is_ours and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise TimeoutError from error


_limited: Final = timeout


async def wait_for(awaitable: Awaitable[R], timeout: Duration | None) -> R:
    """Awaits an awaitable, and cancels it when the time limit has passed. See `timeout`.

    Args:
        awaitable: A call of a step or workflow, a coroutine or a task.
        timeout: The limit, as seconds or as a `timedelta`; None for no limit.

    Returns:
        The result of the awaitable.

    Raises:
        TimeoutError: The limit has passed. The awaitable was cancelled.
        InvalidArgument: The limit is neither a number nor a `timedelta`, or the workflow is sync.
    """
    limit = None if timeout is None else to_seconds("timeout", timeout)
    async with _limited(limit):
        return await awaitable


__all__ = ["timeout", "wait_for"]
