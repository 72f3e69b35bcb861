"""`AsyncEngine`: runs workflows for programs with an event loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from stepfast.branch import BODY, DONE, PENDING, branch_var
from stepfast.errors import Cancelled, Suspended
from stepfast.failure import failure_of
from stepfast.handle import AsyncHandle, settle
from stepfast.loop import Loop
from stepfast.opened import Opened
from stepfast.step import over


class AsyncEngine:
    """Like `Engine`, for programs with an event loop: async workflows run on the loop that it was opened
    on, sync ones on threads. To be used from that loop only."""

    def __init__(
        self,
        url: str,
        *,
        max_running: int = 10_000,
        suspend_after: float = 5.0,
        value_limit: int = 256 * 1024 * 1024,
        threads: int = 64,
        processes: int | None = None,
    ) -> None:
        self._open = functools.partial(
            Opened,
            url,
            max_running=max_running,
            suspend_after=suspend_after,
            value_limit=value_limit,
            threads=threads,
            processes=processes,
        )

    async def open(self) -> Self:
        """Opens the store, and the engine on it; `async with` does it."""
        self._loop = Loop(asyncio.get_running_loop())
        self._port = self._loop.native
        self._opened = await asyncio.to_thread(self._open, self._loop)
        return self

    async def start(
        self, workflow: Callable[..., Any], /, *args: Any, workflow_id: str | None = None, **kwargs: Any
    ) -> AsyncHandle[Any]:
        """Starts an execution. When this returns, it is durable that it will run to its end."""
        opened = self._opened
        call = opened.native.start(opened.number(workflow), args, kwargs, self._port, workflow_id)
        return AsyncHandle(await settle(call), self._port)

    async def run(
        self, workflow: Callable[..., Any], /, *args: Any, workflow_id: str | None = None, **kwargs: Any
    ) -> Any:
        """Starts an execution and waits for its output.

        Its code runs in the caller's task if it can begin at once. Cancelling the caller does not cancel
        the execution: it goes on in a task of its own, from what is recorded.
        """
        opened = self._opened
        number = opened.number(workflow)
        is_inline = opened.workflows[number].is_async
        call = opened.native.run(number, args, kwargs, self._port, workflow_id, None, None, is_inline)
        turn = call.poll()
        while turn in (PENDING, BODY):
            if turn == PENDING:
                await call
                turn = call.turn
                continue
            begun = call.begun()
            assert begun is not None
            branch, (args, kwargs) = begun
            branch.home = opened
            token = branch_var.set(branch)
            branch.watch()
            try:
                output = await opened.workflows[number].function(*args, **kwargs)
                turn = call.returned(output)
            except (Suspended, Cancelled, asyncio.CancelledError):
                # nothing happens if the gate is closed already
                branch.hand_back()
                turn = call.unwound()
                self._check_cancelled()
            except Exception as raised:
                turn = call.raised(failure_of(raised))
            except BaseException:
                branch.hand_back()
                raise
            finally:
                branch_var.reset(token)
        if turn != DONE:
            raise over(call, turn)
        return call.value()

    @staticmethod
    def _check_cancelled() -> None:
        """Raises the cancellation of the caller that the code of the execution has unwound for. One that the
        code had asked for itself, with a timeout for example, is over by now."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError

    async def close(self, grace: float = 10.0) -> None:
        """Ends the engine: what runs is handed back, what is staged is flushed."""
        await asyncio.to_thread(self._opened.close, grace)
        self._loop.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


__all__ = ["AsyncEngine"]
