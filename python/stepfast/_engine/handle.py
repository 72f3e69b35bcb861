"""Handles: references to executions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from stepfast import _native
from stepfast._engine.messaging.streams import (
    StreamValue,
    check_reading,
    stream_values,
    stream_values_async,
)
from stepfast._engine.status import Status
from stepfast._runtime.branch import forbid_in_workflow
from stepfast._runtime.waiting import result_timeout, wait_for_call
from stepfast._validation import bounds
from stepfast._validation.durations import Duration, to_seconds, to_timeout
from stepfast._validation.message import check_message
from stepfast._workflow.messaging.messages import DEFAULT_TOPIC, Sent

if TYPE_CHECKING:
    from stepfast._engine.open_engine import OpenEngine

R = TypeVar("R", covariant=True)


class Handle(Generic[R]):
    """A reference to an execution whose output is an `R`."""

    __slots__ = ("_native", "_open_engine")

    def __init__(self, native: _native.Handle, open_engine: OpenEngine) -> None:
        # the reference to the engine keeps it alive while code may wait for the result
        self._native, self._open_engine = native, open_engine

    @property
    def workflow_id(self) -> str:
        """The execution's workflow_id."""
        return self._native.workflow_id

    def result(self, timeout: Duration | None = None) -> R:
        """Waits for the end of the execution, and returns its output, which is then durable.

        Args:
            timeout: The longest time to wait, as seconds or as a `timedelta`; no limit by default. The
                execution continues after a timeout.

        Raises:
            ResultTimeout: The execution has not ended in time.
            WorkflowCancelled: The execution was cancelled, or its own time limit was reached.
            WorkflowParked: The execution is parked, and continues when it is resumed.
            EngineClosed: The engine was closed during the wait.
            InvalidArgument: The timeout is neither a number nor a `timedelta`, or negative.
            Exception: The exception that the workflow has raised; `WorkflowFailed` for a failure without an
                exception of Python.
        """
        limit = to_timeout("timeout", timeout)
        forbid_in_workflow("handle.result")
        output: R = wait_for_call(self._native.result(None), limit, self)
        return output

    def status(self) -> Status:
        """Returns the current status of the execution, from the database."""
        forbid_in_workflow("handle.status")
        return Status(wait_for_call(self._native.status(None)))

    def send(self, value: Any, *, topic: str = DEFAULT_TOPIC, message_id: str | None = None) -> Sent:
        """Sends a message to the execution. See `Client.send`."""
        forbid_in_workflow("handle.send")
        check_message(topic, message_id)
        return cast("Sent", wait_for_call(self._native.send(value, topic, message_id, None)))

    def get_event(self, name: str, *, timeout: Duration | None = None) -> Any:
        """Waits until the execution has set an event, and returns its value. See `Client.get_event`."""
        forbid_in_workflow("handle.get_event")
        bounds.check_name("event", name)
        return wait_for_call(self._native.get_event(name, to_timeout("timeout", timeout), None))

    def read_stream(self, stream: str, *, offset: int = 0) -> Iterator[StreamValue]:
        """Reads a stream of the execution, also while it grows. See `Client.read_stream`."""
        forbid_in_workflow("handle.read_stream")
        check_reading(stream, offset)
        return stream_values(self._native.read_stream(stream, offset), self._open_engine)

    def ask(
        self,
        value: Any,
        *,
        topic: str = DEFAULT_TOPIC,
        timeout: Duration | None = None,
        message_id: str | None = None,
    ) -> Any:
        """Asks the execution a question, and returns the answer. See `Client.ask`."""
        forbid_in_workflow("handle.ask")
        check_message(topic, message_id)
        seconds = to_timeout("timeout", timeout)
        return wait_for_call(self._native.ask(value, topic, seconds, message_id, None))

    def cancel(self) -> bool:
        """Requests the cancellation of the execution, and of the children for which it waits.

        The request is durable when the call returns. From then on the execution can neither complete nor
        fail, unless it is resumed.

        Returns:
            False if the execution had ended before.
        """
        forbid_in_workflow("handle.cancel")
        is_done: bool = wait_for_call(self._native.cancel(None))
        return is_done

    def pause(self) -> bool:
        """Parks the execution until it is resumed: no further step begins.

        The request is durable when the call returns. If a worker runs the execution, the worker receives the
        request within about a second. The worker parks the execution when all steps that run have ended and
        are recorded. If the execution ends with these steps, the request has no effect. Children that the
        execution has started continue. `result` raises `WorkflowParked` meanwhile.

        Returns:
            False if the execution is scheduled, or had ended before.
        """
        forbid_in_workflow("handle.pause")
        is_done: bool = wait_for_call(self._native.pause(None))
        return is_done

    def resume(self) -> bool:
        """Continues the execution from its record, if it is parked, failed or cancelled.

        If the execution is not parked yet, but a pause is pending, the pause is withdrawn.
        Failed steps are tried again if no other outcome was recorded after their failure. A handle keeps the
        end that it has received. To wait for the new end, get a new handle from the engine.

        Returns:
            False if the execution is neither parked nor failed nor cancelled, and no pause is pending.
        """
        forbid_in_workflow("handle.resume")
        is_done: bool = wait_for_call(self._native.resume(None))
        return is_done

    def __repr__(self) -> str:
        return f"Handle({self.workflow_id!r})"

    def __rich_repr__(self) -> Iterator[Any]:
        yield self.workflow_id


class AsyncHandle(Generic[R]):
    """A reference to an execution whose output is an `R`. Awaiting the handle waits for the output."""

    __slots__ = ("_native", "_open_engine")

    def __init__(self, native: _native.Handle, open_engine: OpenEngine) -> None:
        # the reference to the engine keeps it alive while code may wait for the result
        self._native, self._open_engine = native, open_engine

    @property
    def _port(self) -> _native.Port:
        loop = self._open_engine.loop
        assert loop is not None
        if not loop.native.is_in_task():
            loop.check("the handle")
        return loop.native

    @property
    def workflow_id(self) -> str:
        """The execution's workflow_id."""
        return self._native.workflow_id

    def result(self, timeout: Duration | None = None) -> Coroutine[Any, Any, R]:
        """Waits for the end of the execution, and returns its output, which is then durable. Without a
        timeout, `await handle` does the same. See `Handle.result`.

        Args:
            timeout: The longest time to wait, as seconds or as a `timedelta`; no limit by default. The
                execution continues after a timeout.
        """
        forbid_in_workflow("the result of a handle")
        if timeout is not None:
            seconds = to_seconds("timeout", timeout, 0)
            # a longer timeout counts as no limit, because some event loops cannot count it
            if seconds < TIMEOUT_MAX:
                return self._result_within(seconds)
        loop = self._open_engine.loop
        if loop is not None and loop.native.is_in_task():
            return self._native.result(loop.native)
        return self._result_elsewhere()

    async def _result_elsewhere(self) -> R:
        """Waits on the loop for a result that was requested outside of its tasks, such as in another
        thread."""
        forbid_in_workflow("handle.result")
        output: R = await self._native.result(self._port)
        return output

    async def _result_within(self, seconds: float) -> R:
        """Waits for the output for at most `seconds`."""
        is_own = False
        try:
            async with asyncio.timeout(seconds):
                try:
                    return await self._result_elsewhere()
                except TimeoutError:
                    # the workflow itself has failed with a TimeoutError
                    is_own = True
                    raise
        except TimeoutError:
            if is_own:
                raise
            raise result_timeout(self, seconds) from None

    async def status(self) -> Status:
        """Returns the current status of the execution, from the database. See `Handle.status`."""
        forbid_in_workflow("handle.status")
        return Status(await self._native.status(self._port))

    async def send(self, value: Any, *, topic: str = DEFAULT_TOPIC, message_id: str | None = None) -> Sent:
        """Sends a message to the execution. See `Client.send`."""
        forbid_in_workflow("handle.send")
        check_message(topic, message_id)
        return cast("Sent", await self._native.send(value, topic, message_id, self._port))

    async def get_event(self, name: str, *, timeout: Duration | None = None) -> Any:
        """Waits until the execution has set an event, and returns its value. See `Client.get_event`."""
        forbid_in_workflow("handle.get_event")
        bounds.check_name("event", name)
        return await self._native.get_event(name, to_timeout("timeout", timeout), self._port)

    def read_stream(self, stream: str, *, offset: int = 0) -> AsyncIterator[StreamValue]:
        """Reads a stream of the execution, also while it grows: `async for value in handle.read_stream(…)`.
        See `Client.read_stream`."""
        forbid_in_workflow("handle.read_stream")
        check_reading(stream, offset)
        return stream_values_async(self._native.read_stream(stream, offset), self._open_engine)

    async def ask(
        self,
        value: Any,
        *,
        topic: str = DEFAULT_TOPIC,
        timeout: Duration | None = None,
        message_id: str | None = None,
    ) -> Any:
        """Asks the execution a question, and returns the answer. See `Client.ask`."""
        forbid_in_workflow("handle.ask")
        check_message(topic, message_id)
        seconds = to_timeout("timeout", timeout)
        return await self._native.ask(value, topic, seconds, message_id, self._port)

    async def cancel(self) -> bool:
        """Requests the cancellation of the execution. See `Handle.cancel`."""
        forbid_in_workflow("handle.cancel")
        is_done: bool = await self._native.cancel(self._port)
        return is_done

    async def pause(self) -> bool:
        """Parks the execution until it is resumed. See `Handle.pause`."""
        forbid_in_workflow("handle.pause")
        is_done: bool = await self._native.pause(self._port)
        return is_done

    async def resume(self) -> bool:
        """Continues the execution from its record. See `Handle.resume`."""
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
    """Returns the outputs of many executions, and exceptions in their places if `return_exceptions` is True.
    Otherwise raises the first exception."""
    if not return_exceptions:
        for is_output, end in ends:
            if not is_output:
                raise end
    return [end for _, end in ends]


__all__ = ["AsyncHandle", "Handle"]
