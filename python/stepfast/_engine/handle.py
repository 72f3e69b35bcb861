"""Handles: references to executions."""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stepfast import _native
from stepfast._runtime.branch import forbid_in_workflow
from stepfast._runtime.waiting import wait_for_call
from stepfast._validation import bounds

if TYPE_CHECKING:
    from stepfast._engine.base import Opened

R = TypeVar("R", covariant=True)


class Handle(Generic[R]):
    """A reference to an execution whose output is an `R`."""

    __slots__ = ("_native", "_opened")

    def __init__(self, native: _native.Handle, opened: Opened) -> None:
        # the engine lives as long as somebody may wait here
        self._native, self._opened = native, opened

    @property
    def workflow_id(self) -> str:
        """The execution's workflow_id."""
        return self._native.workflow_id

    def result(self, timeout: float | None = None) -> R:
        """Waits for the end of the execution, and returns its output, which is then durable.

        Args:
            timeout: Longest to wait, in seconds; for ever by default. The execution goes on.

        Raises:
            TimeoutError: It has not ended in time.
            WorkflowCancelled: It was cancelled, or its own time was up.
            WorkflowParked: It is parked: it goes on when somebody resumes it.
            Unavailable: The engine was closed meanwhile.
            InvalidArgument: The timeout is no number, or negative.
            Exception: What the workflow has raised; `WorkflowFailed` where no code of Python has.
        """
        bounds.check_limit("timeout", timeout)
        forbid_in_workflow("handle.result")
        output: R = wait_for_call(self._native.result(None), timeout, self)
        return output

    def status(self) -> str:
        """Its status now, from the database: scheduled, queued, running, waiting, completed, failed or
        cancelled."""
        forbid_in_workflow("handle.status")
        status: str = wait_for_call(self._native.status(None))
        return status

    def cancel(self) -> bool:
        """Asks that it be cancelled, with the children it waits for. Durable when this returns: then it
        neither completes nor fails, unless somebody resumes it.

        Returns:
            False if it had ended before.
        """
        forbid_in_workflow("handle.cancel")
        is_done: bool = wait_for_call(self._native.cancel(None))
        return is_done

    def resume(self) -> bool:
        """Asks that it go on from what is recorded, if it is parked, failed or cancelled. Steps that failed
        last, after which nothing else came to an end, are tried again. A handle keeps the end that it has
        seen: take a new one from the engine.

        Returns:
            False if it is none of these.
        """
        forbid_in_workflow("handle.resume")
        is_done: bool = wait_for_call(self._native.resume(None))
        return is_done

    def __repr__(self) -> str:
        return f"Handle({self.workflow_id!r})"

    def __rich_repr__(self) -> Iterator[Any]:
        yield self.workflow_id


class AsyncHandle(Generic[R]):
    """A reference to an execution whose output is an `R`; awaiting it is awaiting its output."""

    __slots__ = ("_native", "_opened")

    def __init__(self, native: _native.Handle, opened: Opened) -> None:
        # the engine lives as long as somebody may wait here
        self._native, self._opened = native, opened

    @property
    def _port(self) -> _native.Port:
        loop = self._opened.loop
        assert loop is not None
        if not loop.native.is_in_task():
            loop.check("the handle")
        return loop.native

    @property
    def workflow_id(self) -> str:
        """The execution's workflow_id."""
        return self._native.workflow_id

    def result(self) -> Coroutine[Any, Any, R]:
        """Waits for the end of the execution, and returns its output, which is then durable. The same as
        awaiting the handle; `asyncio.timeout` bounds the wait, and the execution goes on.

        Raises:
            WorkflowCancelled: It was cancelled, or its own time was up.
            WorkflowParked: It is parked: it goes on when somebody resumes it.
            Unavailable: The engine was closed meanwhile.
            Exception: What the workflow has raised; `WorkflowFailed` where no code of Python has.
        """
        forbid_in_workflow("the result of a handle")
        loop = self._opened.loop
        if loop is not None and loop.native.is_in_task():
            return self._native.result(loop.native)
        return self._result_there()

    async def _result_there(self) -> R:
        """What is asked for elsewhere may be awaited on the loop."""
        forbid_in_workflow("handle.result")
        output: R = await self._native.result(self._port)
        return output

    async def status(self) -> str:
        """Its status now, from the database. See `Handle.status`."""
        forbid_in_workflow("handle.status")
        status: str = await self._native.status(self._port)
        return status

    async def cancel(self) -> bool:
        """Asks that it be cancelled. See `Handle.cancel`."""
        forbid_in_workflow("handle.cancel")
        is_done: bool = await self._native.cancel(self._port)
        return is_done

    async def resume(self) -> bool:
        """Asks that it go on from what is recorded. See `Handle.resume`."""
        forbid_in_workflow("handle.resume")
        is_done: bool = await self._native.resume(self._port)
        return is_done

    def __await__(self) -> Generator[Any, Any, R]:
        return self.result().__await__()

    def __repr__(self) -> str:
        return f"AsyncHandle({self.workflow_id!r})"

    def __rich_repr__(self) -> Iterator[Any]:
        yield self.workflow_id


def outcomes(ends: list[tuple[bool, Any]], return_exceptions: bool) -> list[Any]:
    """The outputs of many executions; raises the first exception, unless they are wanted."""
    if not return_exceptions:
        for is_output, end in ends:
            if not is_output:
                raise end
    return [end for _, end in ends]


__all__ = ["AsyncHandle", "Handle"]
