"""What tells an engine that its event loop ends."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Collection
from contextvars import Context
from typing import Any, TypeVar, cast

R = TypeVar("R")


class LoopEnd(asyncio.Future[None]):
    """Waits for the end of a loop, in a task that does nothing else: like `asyncio.run`, most programs cancel
    all tasks when they end. `told` is called at once, before any code hears of it; `close` is awaited then.

    Done when nobody has to wait any more.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        told: Callable[[], None],
        close: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(loop=loop)
        self._told, self._close = told, close
        task = loop.create_task(self._wait(), name="stepfast", context=Context())
        # a loop that is closed with tasks left is no news to those who do so
        cast("Any", task)._log_destroy_pending = False

    async def _wait(self) -> None:
        try:
            await self
        except asyncio.CancelledError:
            await self._close()

    def cancel(self, msg: Any | None = None) -> bool:
        """Called for a task that is cancelled while it waits for this."""
        if not self.done():
            self._told()
        return super().cancel(msg)

    def close(self) -> None:
        """Nobody has to wait any more."""
        if not self.done():
            self.set_result(None)


def in_thread(loop: asyncio.AbstractEventLoop, function: Callable[[], R]) -> asyncio.Future[R]:
    """Calls `function` in a thread of its own: those of the loop may all be busy, for ever."""
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
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=call, name="stepfast-close", daemon=True).start()
    return future


async def finished(futures: Collection[asyncio.Future[Any]], patience: float | None = None) -> None:
    """Waits until all are done, for so many seconds at most, whoever is cancelled meanwhile."""
    over = None if patience is None else time.monotonic() + patience
    while not all(future.done() for future in futures):
        left = None if over is None else over - time.monotonic()
        if left is not None and left <= 0.0:
            return
        try:
            await asyncio.wait(futures, timeout=left)
        except asyncio.CancelledError:
            # it is being ended; that takes what it takes
            continue
