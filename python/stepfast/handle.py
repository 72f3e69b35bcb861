"""Handles: references to executions."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Generic, TypeVar

from stepfast import _native
from stepfast.branch import DONE, PENDING
from stepfast.step import over

R = TypeVar("R")


class Handle(Generic[R]):
    """A reference to an execution whose output is an `R`."""

    __slots__ = ("_native",)

    def __init__(self, native: _native.Handle) -> None:
        self._native = native

    @property
    def workflow_id(self) -> str:
        """The execution's workflow_id."""
        return self._native.workflow_id

    def result(self) -> R:
        """Waits for the end of the execution, and returns its output, which is then durable."""
        output: R = settle_here(self._native.result(None))
        return output

    def status(self) -> str:
        """Its status now, from the database."""
        status: str = settle_here(self._native.status(None))
        return status

    def cancel(self) -> None:
        """Asks that it be cancelled."""
        settle_here(self._native.cancel(None))

    def __repr__(self) -> str:
        return f"<handle {self.workflow_id}>"


class AsyncHandle(Generic[R]):
    """A reference to an execution whose output is an `R`; awaiting it is awaiting its output."""

    __slots__ = ("_native", "_port")

    def __init__(self, native: _native.Handle, port: _native.Port) -> None:
        self._native, self._port = native, port

    @property
    def workflow_id(self) -> str:
        """The execution's workflow_id."""
        return self._native.workflow_id

    async def result(self) -> R:
        """Waits for the end of the execution, and returns its output, which is then durable."""
        output: R = await settle(self._native.result(self._port))
        return output

    async def status(self) -> str:
        """Its status now, from the database."""
        status: str = await settle(self._native.status(self._port))
        return status

    async def cancel(self) -> None:
        """Asks that it be cancelled."""
        await settle(self._native.cancel(self._port))

    def __await__(self) -> Generator[Any, Any, R]:
        return self.result().__await__()

    def __repr__(self) -> str:
        return f"<handle {self.workflow_id}>"


async def settle(call: _native.Call) -> Any:
    """Waits for a call without a body, in a task of the loop."""
    while call.turn == PENDING:
        await call
    turn = call.turn
    if turn != DONE:
        raise over(call, turn)
    return call.value()


def settle_here(call: _native.Call) -> Any:
    """Waits for a call without a body, in this thread."""
    turn = call.wait()
    if turn != DONE:
        raise over(call, turn)
    return call.value()


__all__ = ["AsyncHandle", "Handle"]
