"""`AsyncClient`: starts executions for workers elsewhere, in programs with an event loop."""

from __future__ import annotations

import builtins
import threading
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from stepfast._engine.batch.handle import AsyncBatchHandle
from stepfast._engine.batch.submission import submit_batch_async
from stepfast._engine.dead_letters import DeadLetter
from stepfast._engine.filter import BulkResult, Filter
from stepfast._engine.handle import AsyncHandle
from stepfast._engine.messaging.streams import StreamValue, stream_values_async
from stepfast._engine.open_engine import OpenEngine
from stepfast._engine.records import Event, Execution, ExecutionOutcome, Record
from stepfast._engine.scheduling.schedule import Schedule, declared_schedules
from stepfast._engine.scheduling.schedule_info import ScheduleInfo
from stepfast._engine.workers import WorkerOverview
from stepfast._options.batch_options import BatchOptions
from stepfast._options.queue import Queue, QueueInfo, declared_queues
from stepfast._runtime.branch import forbid_in_workflow
from stepfast._runtime.event_loop.loop import EngineLoop, require_running_loop
from stepfast._runtime.event_loop.shutdown import run_in_thread
from stepfast._validation import bounds
from stepfast._validation.durations import Duration
from stepfast._workflow.messaging.messages import DEFAULT_TOPIC, Sent
from stepfast._workflow.remote import RemoteWorkflow, Unspecified
from stepfast._workflow.startable import Startable
from stepfast.errors import InvalidArgument

P = ParamSpec("P")
R = TypeVar("R")


class AsyncClient:
    """A `Client` for programs with an event loop: `async with AsyncClient(url) as client:`. Only code on the
    loop that opened the client may use it. See `Client` for the arguments, and `open` for the errors of
    opening the client.

    Raises:
        InvalidArgument: An argument is out of its bounds.
    """

    def __init__(self, url: str, *, queues: Iterable[Queue] = (), schedules: Iterable[Schedule] = ()) -> None:
        bounds.check_store_url(url)
        declared, listed = declared_queues(queues), declared_schedules(schedules)
        self._open_engine: OpenEngine | None = None
        #: Opens the store, and the engine or client that uses the store.
        self._open_on: Callable[[EngineLoop], OpenEngine] = lambda loop: OpenEngine(
            url, loop, queues=declared, schedules=listed, is_client=True
        )

    async def open(self) -> Self:
        """Opens the store, and the engine or client that uses the store. `async with` calls this method.

        Raises:
            InvalidArgument: The store cannot be opened.
            QueueConflict: A queue is stored with other limits, and its `on_conflict` is `reject`.
            ScheduleConflict: A schedule is stored with other values, and its `on_conflict` is `reject`.
            StoreCorrupt: The store is damaged.
            SchemaMismatch: The store was written by a newer version of Stepfast.
            StoreUnavailable: The database is unreachable.
        """
        name = type(self).__name__
        if self._open_engine is not None and not self._open_engine.is_closed:
            raise InvalidArgument(
                f"this {name} is already open: to open the same store again, make another {name}"
            )
        loop = EngineLoop(require_running_loop())
        opening = _Opening(lambda: self._open_on(loop))
        try:
            self._open_engine = await run_in_thread(loop.loop, opening.run)
        except BaseException:
            # the caller may be cancelled, and its loop may end before the engine is open
            opening.abandon()
            loop.close()
            raise
        return self

    @property
    def _here(self) -> OpenEngine:
        """The open engine. Callers on another loop than the engine's own are rejected."""
        open_engine = self._open_engine
        if open_engine is None:
            name = type(self).__name__
            raise InvalidArgument(f"this {name} is not open: write `async with {name}(...)`, or await open()")
        assert open_engine.loop is not None
        open_engine.loop.check()
        return open_engine

    async def _call_here(self, call: Callable[..., Awaitable[Any]], /, *args: Any) -> Any:
        """Makes a call on the loop that awaits this coroutine. The caller that creates the coroutine may be
        in another thread, as with `asyncio.run_coroutine_threadsafe`."""
        return await call(self._here, *args)

    @overload
    async def start(
        self, workflow: Startable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncHandle[R]: ...

    @overload
    async def start(
        self, workflow: Startable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncHandle[R]: ...

    @overload
    async def start(
        self, workflow: RemoteWorkflow[[Unspecified], Unspecified], /, *args: Any, **kwargs: Any
    ) -> AsyncHandle[Any]: ...

    def start(self, workflow: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Starts an execution. When the awaited call returns, the start is durable: the execution will run to
        its end. See `Client.start`.

        Returns:
            A handle. Awaiting the handle waits for the end of the execution.
        """
        open_engine = self._open_engine
        if open_engine is None or not open_engine.is_here():
            return self._call_here(OpenEngine.start_in_task, workflow, args, kwargs)
        return open_engine.start_in_task(workflow, args, kwargs)

    @overload
    async def start_many(
        self, workflow: RemoteWorkflow[[Unspecified], Unspecified], items: Iterable[tuple[Any, ...]], /
    ) -> builtins.list[AsyncHandle[Any]]: ...

    @overload
    async def start_many(
        self, workflow: Startable[..., Coroutine[Any, Any, R]], items: Iterable[tuple[Any, ...]], /
    ) -> builtins.list[AsyncHandle[R]]: ...

    @overload
    async def start_many(
        self, workflow: Startable[..., R], items: Iterable[tuple[Any, ...]], /
    ) -> builtins.list[AsyncHandle[R]]: ...

    async def start_many(self, workflow: Any, items: Any, /) -> Any:
        """Starts an execution for each tuple of arguments, in one call. See `Client.start_many`."""
        open_engine = self._here
        return [AsyncHandle(handle, open_engine) for handle in await open_engine.start_many(workflow, items)]

    @overload
    async def submit_batch(
        self,
        workflow: RemoteWorkflow[[Unspecified], Unspecified],
        inputs: Iterable[tuple[Any, ...]] | AsyncIterable[tuple[Any, ...]],
        /,
        **options: Unpack[BatchOptions],
    ) -> AsyncBatchHandle[Any]: ...

    @overload
    async def submit_batch(
        self,
        workflow: Startable[..., Coroutine[Any, Any, R]],
        inputs: Iterable[tuple[Any, ...]] | AsyncIterable[tuple[Any, ...]],
        /,
        **options: Unpack[BatchOptions],
    ) -> AsyncBatchHandle[R]: ...

    @overload
    async def submit_batch(
        self,
        workflow: Startable[..., R],
        inputs: Iterable[tuple[Any, ...]] | AsyncIterable[tuple[Any, ...]],
        /,
        **options: Unpack[BatchOptions],
    ) -> AsyncBatchHandle[R]: ...

    async def submit_batch(self, workflow: Any, inputs: Any, /, **options: Unpack[BatchOptions]) -> Any:
        """Submits an item for each tuple of arguments as one batch. `inputs` may also be an async iterable,
        such as an async generator. See `Client.submit_batch`."""
        open_engine = self._here
        native = await submit_batch_async(open_engine, workflow, inputs, options)
        handle: AsyncBatchHandle[Any] = AsyncBatchHandle(native, open_engine)
        return handle

    @overload
    async def get_batch(self, batch_id: str) -> AsyncBatchHandle[Any]: ...

    @overload
    async def get_batch(
        self, batch_id: str, workflow: RemoteWorkflow[[Unspecified], Unspecified]
    ) -> AsyncBatchHandle[Any]: ...

    @overload
    async def get_batch(
        self, batch_id: str, workflow: Startable[..., Coroutine[Any, Any, R]]
    ) -> AsyncBatchHandle[R]: ...

    @overload
    async def get_batch(self, batch_id: str, workflow: Startable[..., R]) -> AsyncBatchHandle[R]: ...

    async def get_batch(self, batch_id: str, workflow: Any = None) -> Any:
        """Returns a handle to the batch with this id. See `Client.get_batch`."""
        open_engine = self._here
        handle: AsyncBatchHandle[Any] = AsyncBatchHandle(
            await open_engine.get_batch(batch_id, workflow), open_engine
        )
        return handle

    @overload
    async def run(
        self, workflow: Startable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...

    @overload
    async def run(self, workflow: Startable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    async def run(
        self, workflow: RemoteWorkflow[[Unspecified], Unspecified], /, *args: Any, **kwargs: Any
    ) -> Any: ...

    def run(self, workflow: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Starts an execution and waits for its output, which is then durable. See `Client.run`.

        On an engine the code of an async workflow runs in the caller's task, if the execution can begin at
        once. Cancelling the caller does not cancel the execution, which continues from its record in a task
        of its own.
        """
        open_engine = self._open_engine
        if open_engine is None or not open_engine.is_here():
            return self._call_here(OpenEngine.run_in_task, workflow, args, kwargs)
        return open_engine.run_in_task(workflow, args, kwargs)

    @overload
    async def get(self, workflow_id: str) -> AsyncHandle[Any]: ...

    @overload
    async def get(
        self, workflow_id: str, workflow: RemoteWorkflow[[Unspecified], Unspecified]
    ) -> AsyncHandle[Any]: ...

    @overload
    async def get(
        self, workflow_id: str, workflow: Startable[..., Coroutine[Any, Any, R]]
    ) -> AsyncHandle[R]: ...

    @overload
    async def get(self, workflow_id: str, workflow: Startable[..., R]) -> AsyncHandle[R]: ...

    async def get(self, workflow_id: str, workflow: Any = None) -> Any:
        """Returns a handle to the execution with this workflow_id. See `Client.get`."""
        open_engine = self._here
        handle: AsyncHandle[Any] = AsyncHandle(
            await open_engine.get_handle(workflow_id, workflow), open_engine
        )
        return handle

    @overload
    async def results(
        self, handles: Iterable[AsyncHandle[R]], *, return_exceptions: Literal[False] = False
    ) -> builtins.list[R]: ...

    @overload
    async def results(
        self, handles: Iterable[AsyncHandle[R]], *, return_exceptions: bool
    ) -> builtins.list[R | BaseException]: ...

    async def results(self, handles: Iterable[AsyncHandle[Any]], *, return_exceptions: bool = False) -> Any:
        """Waits for the ends of many executions in one wait. See `Client.results`."""
        return await self._here.results(handles, return_exceptions)

    async def list(
        self, *, after: str | None = None, limit: int = 50, **filter: Unpack[Filter]
    ) -> builtins.list[Execution]:
        """Returns executions that match the filter, newest first. See `Client.list`."""
        return await self._here.list(filter, after, limit)

    async def count(self, **filter: Unpack[Filter]) -> int:
        """Returns the number of executions that match the filter. See `Client.count`."""
        return await self._here.count(filter)

    async def show(self, workflow_id: str) -> Record:
        """Returns everything that is recorded of an execution. See `Client.show`."""
        return await self._here.show(workflow_id)

    async def get_many(self, workflow_ids: Iterable[str]) -> builtins.list[ExecutionOutcome | None]:
        """Finds many executions by their workflow_ids, with their outcomes so far. See `Client.get_many`."""
        return await self._here.get_many(workflow_ids)

    async def find(
        self, attribute: str, values: Iterable[str], *, limit: int = 50
    ) -> builtins.list[builtins.list[ExecutionOutcome]]:
        """Finds executions by the values of an attribute, with their outcomes so far. See `Client.find`."""
        return await self._here.find(attribute, values, limit)

    async def send(
        self,
        workflow_id: str,
        value: Any,
        *,
        topic: str = DEFAULT_TOPIC,
        message_id: str | None = None,
        keep: bool = False,
    ) -> Sent:
        """Sends a message to an execution. See `Client.send`."""
        return await self._here.send(workflow_id, value, topic, message_id, keep)

    async def get_event(self, workflow_id: str, name: str, *, timeout: Duration | None = None) -> Any:
        """Waits until an execution has set an event, and returns its value. See `Client.get_event`."""
        return await self._here.get_event(workflow_id, name, timeout)

    async def events(self, workflow_id: str) -> builtins.list[Event]:
        """Returns all events that an execution has set, in their order. See `Client.events`."""
        return await self._here.events(workflow_id)

    def read_stream(self, workflow_id: str, stream: str, *, offset: int = 0) -> AsyncIterator[StreamValue]:
        """Reads a stream of an execution, also while it grows: `async for value in engine.read_stream(…)`.
        See `Client.read_stream`."""
        open_engine = self._here
        return stream_values_async(open_engine.read_stream(workflow_id, stream, offset), open_engine)

    async def complete_token(self, token: str, value: Any) -> None:
        """Completes a token of an execution. See `Client.complete_token`."""
        await self._here.complete_token(token, value)

    async def fail_token(self, token: str, error: BaseException | str) -> None:
        """Fails a token of an execution. See `Client.fail_token`."""
        await self._here.fail_token(token, error)

    async def ask(
        self,
        workflow_id: str,
        value: Any,
        *,
        topic: str = DEFAULT_TOPIC,
        timeout: Duration | None = None,
        message_id: str | None = None,
    ) -> Any:
        """Asks an execution a question, and returns the answer. See `Client.ask`."""
        return await self._here.ask(workflow_id, value, topic, timeout, message_id)

    async def cancel(self, workflow_id: str) -> bool:
        """Requests that an execution be cancelled. See `Client.cancel`."""
        forbid_in_workflow("engine.cancel")
        return await (await self.get(workflow_id)).cancel()

    async def pause(self, workflow_id: str) -> bool:
        """Requests that an execution be parked. See `Client.pause`."""
        forbid_in_workflow("engine.pause")
        return await (await self.get(workflow_id)).pause()

    async def resume(self, workflow_id: str) -> bool:
        """Requests that an execution continue from its record. See `Client.resume`."""
        forbid_in_workflow("engine.resume")
        return await (await self.get(workflow_id)).resume()

    async def cancel_all(self, **filter: Unpack[Filter]) -> BulkResult:
        """Cancels all executions that match the filter and have not ended. See `Client.cancel_all`."""
        return await self._here.cancel_all(filter)

    async def pause_all(self, **filter: Unpack[Filter]) -> BulkResult:
        """Parks all executions that match the filter and can be paused. See `Client.pause_all`."""
        return await self._here.pause_all(filter)

    async def resume_all(self, **filter: Unpack[Filter]) -> BulkResult:
        """Continues all executions that match the filter and are parked, failed or cancelled. See
        `Client.resume_all`."""
        return await self._here.resume_all(filter)

    async def workers(self) -> WorkerOverview:
        """Returns the workers of the database, and the executions that none of them can run. See
        `Client.workers`."""
        return await self._here.workers()

    async def dead_letters(self, *, limit: int = 50) -> builtins.list[DeadLetter]:
        """Returns dead letters, the latest first: starts of outboxes that could not become executions. See
        `Client.dead_letters`."""
        return await self._here.dead_letters(limit)

    async def queues(self) -> builtins.list[QueueInfo]:
        """Returns the stored queues, sorted by name."""
        return await self._here.queues()

    async def set_queue(self, queue: Queue) -> QueueInfo:
        """Creates a queue, or changes the limits of an existing one. See `Client.set_queue`."""
        return await self._here.set_queue(queue)

    async def pause_queue(self, queue: str | Queue) -> QueueInfo:
        """Pauses a queue until it is resumed. See `Client.pause_queue`."""
        return await self._here.pause_queue(queue)

    async def resume_queue(self, queue: str | Queue) -> QueueInfo:
        """Resumes a paused queue. See `Client.resume_queue`."""
        return await self._here.resume_queue(queue)

    async def set_schedule(self, schedule: Schedule) -> None:
        """Creates a schedule, or changes the one that has its name. See `Client.set_schedule`."""
        await self._here.set_schedule(schedule)

    async def schedule(self, name: str) -> ScheduleInfo:
        """Returns a schedule as it is stored, and its present state. See `Client.schedule`."""
        return await self._here.schedule(name)

    async def schedules(self) -> builtins.list[ScheduleInfo]:
        """Returns all schedules, sorted by name."""
        return await self._here.schedules()

    async def pause_schedule(self, name: str, reason: str = "") -> None:
        """Pauses a schedule until it is resumed. See `Client.pause_schedule`."""
        await self._here.pause_schedule(name, reason)

    async def resume_schedule(self, name: str) -> None:
        """Resumes a paused schedule, from its next instant on. See `Client.resume_schedule`."""
        await self._here.resume_schedule(name)

    async def delete_schedule(self, name: str) -> None:
        """Deletes a schedule. See `Client.delete_schedule`."""
        await self._here.delete_schedule(name)

    async def trigger_schedule(self, name: str) -> AsyncHandle[Any]:
        """Starts an execution of a schedule now. See `Client.trigger_schedule`.

        Returns:
            A handle. Awaiting the handle waits for the end of the execution.
        """
        open_engine = self._here
        handle: AsyncHandle[Any] = AsyncHandle(await open_engine.trigger_schedule(name), open_engine)
        return handle

    async def backfill_schedule(self, name: str, start: datetime, end: datetime) -> int:
        """Starts the executions of all instants in a range of the past that have none. See
        `Client.backfill_schedule`."""
        return await self._here.backfill_schedule(name, start, end)

    async def close(self, grace: Duration = 10.0) -> None:
        """Closes the engine or client: requeues the executions that run here, and flushes the staged Writes.
        See `Client.close`.

        Args:
            grace: The longest time to wait for an unreachable database, for async code that unwinds, and for
                code in threads; as seconds or as a `timedelta`. 10 s by default.
        """
        seconds = bounds.checked_grace(grace)
        await self._end(seconds, seconds)

    async def _end(self, grace: float, thread_timeout: float) -> None:
        open_engine = self._open_engine
        if open_engine is None or open_engine.loop is None:
            return
        loop = open_engine.loop
        if open_engine.needs_shutdown or loop.is_ending:
            loop.check()
            await loop.end(open_engine, grace, thread_timeout)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class _Opening:
    """An engine while a thread opens it.

    Args:
        open_engine: The function that opens the engine.
    """

    def __init__(self, open_engine: Callable[[], OpenEngine]) -> None:
        self._open = open_engine
        self._lock = threading.Lock()
        self._engine: OpenEngine | None = None
        self._is_abandoned = False

    def run(self) -> OpenEngine:
        """Opens the engine. Releases it at once if it was abandoned in the meantime."""
        engine = self._open()
        with self._lock:
            self._engine = engine
            is_abandoned = self._is_abandoned
        if is_abandoned:
            engine.release()
        return engine

    def abandon(self) -> None:
        """Releases the engine, as soon as it is open."""
        with self._lock:
            self._is_abandoned = True
            engine = self._engine
        if engine is not None:
            engine.release()


__all__ = ["AsyncClient"]
