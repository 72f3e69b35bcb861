"""Detects that the event loop of an engine is about to end, and then ends the engine."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Collection
from contextvars import Context
from typing import Any, TypeVar

from stepfast._runtime.event_loop.asyncio_internals import silence_destroyed_task

R = TypeVar("R")


class LoopShutdownWatch(asyncio.Future[None]):
    """A future for which a task waits until the loop ends.

    Before they close a loop, `asyncio.run` and most programs cancel all tasks, among them the task of this
    future. `on_shutdown` is called at once, before the cancellation reaches any other code. Then the task
    awaits `close`. The method `close` of this class ends the future when the watch is no longer needed.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_shutdown: Callable[[], None],
        close: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(loop=loop)
        self._on_shutdown, self._close = on_shutdown, close
        task = loop.create_task(self._wait(), name="stepfast", context=Context())
        # a program that closes a loop with unfinished tasks must not see a warning for this task
        silence_destroyed_task(task)

    async def _wait(self) -> None:
        try:
            await self
        except asyncio.CancelledError:
            await self._close()

    def cancel(self, msg: Any | None = None) -> bool:
        """Reacts to the cancellation of the task that waits for this future."""
        if not self.done():
            self._on_shutdown()
        return super().cancel(msg)

    def close(self) -> None:
        """Ends the watch."""
        if not self.done():
            self.set_result(None)


def run_in_thread(loop: asyncio.AbstractEventLoop, function: Callable[[], R]) -> asyncio.Future[R]:
    """Calls `function` in a thread of its own, because all threads of the loop's executor may be busy
    forever."""
    future: asyncio.Future[R] = loop.create_future()

    def settle(value: Any, raised: BaseException | None) -> None:
        if future.done():
            return
        if raised is not None:
            future.set_exception(raised)
        else:
            future.set_result(value)

    def call() -> None:
        value, error = None, None
        try:
            value = function()
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=call, name="stepfast-close", daemon=True).start()
    return future


async def wait_until_done(futures: Collection[asyncio.Future[Any]], timeout: float | None = None) -> None:
    """Waits until all futures are done, even if the waiting task is cancelled.

    Args:
        futures: The futures.
        timeout: The longest time to wait, in seconds; no limit by default.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while not all(future.done() for future in futures):
        remaining = None if deadline is None else deadline - time.monotonic()
        if remaining is not None and remaining <= 0.0:
            return
        try:
            await asyncio.wait(futures, timeout=remaining)
        except asyncio.CancelledError:
            # the end of the engine has begun, and has to complete
            continue
