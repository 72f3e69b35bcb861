"""`AsyncEngine`: runs workflows for programs with an event loop."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import functools
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from stepfast._engine.base import Opened
from stepfast._engine.dead_letters import DeadLetter, dead_letter_of
from stepfast._engine.filter import Answers, Filter
from stepfast._engine.handle import AsyncHandle, outcomes
from stepfast._engine.options import AsyncOptions, check_names
from stepfast._engine.records import Execution, Record, execution_of, record_of
from stepfast._engine.signals import calling_on
from stepfast._engine.workers import Survey, survey_of
from stepfast._options.queue import (
    OnDuplicate,
    OnFull,
    Queue,
    QueueInfo,
    declared,
    info_of,
    name_of,
    served,
    told,
)
from stepfast._options.start_options import StartOptions, order_of
from stepfast._runtime import process_hooks
from stepfast._runtime.branch import forbid_in_workflow
from stepfast._runtime.event_loop.loop import EngineLoop, require_running_loop
from stepfast._runtime.event_loop.shutdown import run_in_thread, wait_until_done
from stepfast._validation import bounds
from stepfast._workflow.workflow import BoundWorkflow, Workflow
from stepfast.errors import EngineClosed, InvalidArgument

P = ParamSpec("P")
R = TypeVar("R")


class AsyncEngine:
    """Like `Engine`, for programs with an event loop: async workflows run on the loop that it was opened
    on, sync ones on threads. To be used from that loop only, as `async with AsyncEngine(url) as engine:`.

    Args:
        url: The store: `sqlite://shop.db`, `postgres://…`, `memory:`.
        max_running: Executions that run at a time in this process; what is started beyond waits.
        suspend_after: An execution that waits longer than so many seconds gives up its memory, and goes on
            from its record when the wait is over.
        value_limit: Largest input, step value or output, in encoded bytes; by default 256 MiB.
        threads: Sync workflows that run at a time, each on a thread.
        processes: Bodies of steps with `process=True` that run at a time; by default as many as there are
            processors.
        app_version: The version of the program's code. What this engine starts is then run only by workers of
            the same version, and this engine runs only what has this version or none. Unset by default, and
            then everything matches: a deploy continues what the code before it began.
        max_recoveries: How often an execution whose worker died several times in a row, without a new
            checkpoint of it, is tried alone before it ends as failed.
        queues: Queues that are stored when the engine opens, for all processes; see `Queue`.
        serve: The queues from which this engine takes executions to run, as names or as `Queue`; all by
            default. What has no queue is in `default`.

    Raises:
        InvalidArgument: An option is out of its bounds.
    """

    _options_of: type[AsyncOptions] = AsyncOptions

    def __init__(
        self,
        url: str,
        *,
        max_running: int = 10_000,
        suspend_after: float = 5.0,
        value_limit: int = 256 * 1024 * 1024,
        threads: int = 64,
        processes: int | None = None,
        app_version: str | None = None,
        max_recoveries: int = 10,
        queues: Iterable[Queue] = (),
        serve: Iterable[str | Queue] | None = None,
    ) -> None:
        bounds.check_engine_options(
            url, max_running, suspend_after, value_limit, threads, processes, app_version, max_recoveries
        )
        self._opened: Opened | None = None
        self._open = functools.partial(
            Opened,
            url,
            max_running=max_running,
            suspend_after=suspend_after,
            value_limit=value_limit,
            threads=threads,
            processes=processes,
            app_version=app_version,
            max_recoveries=max_recoveries,
            queues=declared(queues),
            serve=served(serve),
        )

    async def open(self) -> Self:
        """Opens the store, and the engine on it; `async with` does it.

        Raises:
            InvalidArgument: The store cannot be opened.
            QueueConflict: A queue is stored with other limits, and its `on_conflict` is `refuse`.
            StoreCorrupt: The store is damaged, or was written by a newer version of Stepfast.
            Unavailable: The database server does not answer.
        """
        if self._opened is not None and not self._opened.is_closed:
            raise InvalidArgument(
                "the engine is open already: to open the same store once more, make another AsyncEngine"
            )
        loop = EngineLoop(require_running_loop())
        opening = run_in_thread(loop.loop, functools.partial(self._open, loop))
        try:
            self._opened = await asyncio.shield(opening)
        except BaseException:
            # who was to have it may be cancelled: then it goes away when it is open
            opening.add_done_callback(_let_go)
            loop.close()
            raise
        return self

    @property
    def _here(self) -> Opened:
        """What is open, in its own loop."""
        opened = self._opened
        if opened is None:
            raise InvalidArgument(
                "the engine is not open: write `async with AsyncEngine(...) as engine`, or await open()"
            )
        assert opened.loop is not None
        opened.loop.check()
        return opened

    @overload
    async def start(
        self,
        workflow: Workflow[P, Coroutine[Any, Any, R]] | BoundWorkflow[P, Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> AsyncHandle[R]: ...

    @overload
    async def start(
        self, workflow: Workflow[P, R] | BoundWorkflow[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncHandle[R]: ...

    @overload
    async def start(
        self,
        workflow: Workflow[..., Coroutine[Any, Any, R]] | BoundWorkflow[..., Coroutine[Any, Any, R]],
        /,
        *args: Any,
        workflow_id: str | None,
        **kwargs: Any,
    ) -> AsyncHandle[R]: ...

    @overload
    async def start(
        self,
        workflow: Workflow[..., R] | BoundWorkflow[..., R],
        /,
        *args: Any,
        workflow_id: str | None,
        **kwargs: Any,
    ) -> AsyncHandle[R]: ...

    def start(  # type: ignore[misc] # a workflow with a workflow_id of its own: see `options`
        self, workflow: Any, /, *args: Any, workflow_id: str | None = None, **kwargs: Any
    ) -> Any:
        """Starts an execution. When this has been awaited, it is durable that it will run to its end. See
        `Engine.start`."""
        order = None if workflow_id is None else order_of(workflow_id=workflow_id)
        return self._start(workflow, args, kwargs, order)

    @overload
    async def start_many(
        self,
        workflow: Workflow[..., Coroutine[Any, Any, R]] | BoundWorkflow[..., Coroutine[Any, Any, R]],
        items: Iterable[tuple[Any, ...]],
        /,
    ) -> builtins.list[AsyncHandle[R]]: ...

    @overload
    async def start_many(
        self, workflow: Workflow[..., R] | BoundWorkflow[..., R], items: Iterable[tuple[Any, ...]], /
    ) -> builtins.list[AsyncHandle[R]]: ...

    async def start_many(self, workflow: Any, items: Any, /) -> Any:
        """Starts an execution for each tuple of arguments, in one call. See `Engine.start_many`."""
        return await self._start_many(workflow, items, None)

    async def _start_many(
        self, workflow: Callable[..., Any], items: Iterable[tuple[Any, ...]], order: StartOptions | None
    ) -> builtins.list[AsyncHandle[Any]]:
        opened = self._here
        return [AsyncHandle(it, opened) for it in await opened.start_many(workflow, items, order)]

    @overload
    async def enqueue(
        self,
        queue: str | Queue,
        workflow: Workflow[P, Coroutine[Any, Any, R]] | BoundWorkflow[P, Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> AsyncHandle[R]: ...

    @overload
    async def enqueue(
        self,
        queue: str | Queue,
        workflow: Workflow[P, R] | BoundWorkflow[P, R],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> AsyncHandle[R]: ...

    def enqueue(self, queue: str | Queue, workflow: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Puts an execution into a queue: short for `engine.options(queue=queue).start(workflow, …)`. See
        `Engine.enqueue`."""
        check_names(workflow, kwargs)
        return self._start(workflow, args, kwargs, order_of(queue=name_of(queue)))

    @overload
    async def run(
        self,
        workflow: Workflow[P, Coroutine[Any, Any, R]] | BoundWorkflow[P, Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R: ...

    @overload
    async def run(
        self, workflow: Workflow[P, R] | BoundWorkflow[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...

    @overload
    async def run(
        self,
        workflow: Workflow[..., Coroutine[Any, Any, R]] | BoundWorkflow[..., Coroutine[Any, Any, R]],
        /,
        *args: Any,
        workflow_id: str | None,
        **kwargs: Any,
    ) -> R: ...

    @overload
    async def run(
        self,
        workflow: Workflow[..., R] | BoundWorkflow[..., R],
        /,
        *args: Any,
        workflow_id: str | None,
        **kwargs: Any,
    ) -> R: ...

    def run(  # type: ignore[misc] # see `start`
        self, workflow: Any, /, *args: Any, workflow_id: str | None = None, **kwargs: Any
    ) -> Any:
        """Starts an execution and waits for its output, which is then durable. See `Engine.run`.

        Its code runs in the caller's task if it can begin at once. Cancelling the caller does not cancel
        the execution: it goes on in a task of its own, from what is recorded.
        """
        opened = self._opened
        if opened is None or workflow_id is not None or not opened.is_here():
            return self._run(workflow, args, kwargs, order_of(workflow_id=workflow_id))
        return opened.run_in_task(workflow, args, kwargs)

    def options(
        self,
        *,
        workflow_id: str | None = None,
        timeout: float | None = None,
        run_timeout: float | None = None,
        patience: float | None = None,
        queue: str | Queue | None = None,
        key: str | None = None,
        priority: int | None = None,
        dedup_id: str | None = None,
        on_duplicate: OnDuplicate = "reject",
        on_full: OnFull = "reject",
        delay: float | None = None,
        start_at: datetime | None = None,
        debounce: str | None = None,
        max_delay: float | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> AsyncOptions:
        """The engine, to start executions with options. See `Engine.options`."""
        return self._options_of(
            self._start,
            self._run,
            self._start_many,
            order_of(
                workflow_id=workflow_id,
                timeout=timeout,
                run_timeout=run_timeout,
                patience=patience,
                queue=queue,
                key=key,
                priority=priority,
                dedup_id=dedup_id,
                on_duplicate=on_duplicate,
                on_full=on_full,
                delay=delay,
                start_at=start_at,
                debounce=debounce,
                max_delay=max_delay,
                attributes=attributes,
            ),
        )

    def _start(
        self,
        workflow: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        order: StartOptions | None,
    ) -> Coroutine[Any, Any, AsyncHandle[Any]]:
        opened = self._opened
        if opened is None or not opened.is_here():
            return self._there(Opened.start_in_task, workflow, args, kwargs, order)
        return opened.start_in_task(workflow, args, kwargs, order)

    def _run(
        self,
        workflow: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        order: StartOptions | None,
    ) -> Coroutine[Any, Any, Any]:
        opened = self._opened
        if opened is None or not opened.is_here():
            return self._there(Opened.run_in_task, workflow, args, kwargs, order)
        return opened.run_in_task(workflow, args, kwargs, order)

    async def _there(self, ask: Callable[..., Awaitable[Any]], /, *asked: Any) -> Any:
        """What is asked for elsewhere may be awaited here, as by `asyncio.run_coroutine_threadsafe`."""
        return await ask(self._here, *asked)

    async def get(self, workflow_id: str) -> AsyncHandle[Any]:
        """A handle to the execution with this workflow_id, whoever has started it.

        Args:
            workflow_id: Given when it was started, or minted then.

        Raises:
            NotFound: There is none.
        """
        opened = self._here
        bounds.check_storable_text("workflow_id", workflow_id)
        return AsyncHandle(await opened.asked("get").get_handle(workflow_id, opened.port), opened)

    @overload
    async def results(
        self, handles: Iterable[AsyncHandle[R]], *, return_exceptions: Literal[False] = False
    ) -> builtins.list[R]: ...

    @overload
    async def results(
        self, handles: Iterable[AsyncHandle[R]], *, return_exceptions: bool
    ) -> builtins.list[R | BaseException]: ...

    async def results(self, handles: Iterable[AsyncHandle[Any]], *, return_exceptions: bool = False) -> Any:
        """Waits for the ends of many executions at once: one wait, however many there are. See
        `Engine.results`."""
        return outcomes(await self._here.results(handles), return_exceptions)

    async def show(self, workflow_id: str) -> Record:
        """Everything recorded of an execution.

        Args:
            workflow_id: Of the execution.

        Raises:
            NotFound: There is no such execution.
        """
        bounds.check_storable_text("workflow_id", workflow_id)
        return record_of(await self._here.asked("show").show(workflow_id, self._here.port))

    async def survey(self) -> Survey:
        """Who works on the database, and what waits for a worker that is not there. See `Engine.survey`."""
        opened = self._here
        return survey_of(await opened.asked("survey").workers(opened.port))

    async def dead_letters(self, *, limit: int = 50) -> builtins.list[DeadLetter]:
        """Starts of outboxes that could not become executions, the latest first. See `Engine.dead_letters`.

        Args:
            limit: At most so many, at least 1.
        """
        opened = self._here
        bounds.check_count("limit", limit, 1)
        letters = await opened.asked("dead_letters").dead_letters(limit, opened.port)
        return [dead_letter_of(row) for row in letters]

    async def queues(self) -> builtins.list[QueueInfo]:
        """The queues that there are, by name."""
        opened = self._here
        return [info_of(row) for row in await opened.asked("queues").queues(opened.port)]

    async def set_queue(self, queue: Queue) -> QueueInfo:
        """Creates a queue, or gives one that is there these limits. See `Engine.set_queue`."""
        opened = self._here
        return info_of(await opened.asked("set_queue").set_queue(told(queue), opened.port))

    async def pause_queue(self, queue: str | Queue) -> QueueInfo:
        """Stops a queue until it is resumed. See `Engine.pause_queue`."""
        opened = self._here
        return info_of(await opened.asked("pause_queue").set_paused(name_of(queue), True, opened.port))

    async def resume_queue(self, queue: str | Queue) -> QueueInfo:
        """Lets a queue that was paused go on. See `Engine.resume_queue`."""
        opened = self._here
        return info_of(await opened.asked("resume_queue").set_paused(name_of(queue), False, opened.port))

    async def cancel(self, workflow_id: str) -> bool:
        """Asks that an execution be cancelled. See `Handle.cancel`.

        Args:
            workflow_id: Of the execution.

        Returns:
            False if it had ended before.

        Raises:
            NotFound: There is no such execution.
        """
        forbid_in_workflow("engine.cancel")
        return await (await self.get(workflow_id)).cancel()

    async def resume(self, workflow_id: str) -> bool:
        """Asks that an execution go on from what is recorded. See `Handle.resume`.

        Args:
            workflow_id: Of the execution.

        Returns:
            False if it is neither parked nor failed nor cancelled.

        Raises:
            NotFound: There is no such execution.
        """
        forbid_in_workflow("engine.resume")
        return await (await self.get(workflow_id)).resume()

    async def cancel_all(self, **filter: Unpack[Filter]) -> Answers:
        """Cancels all executions that match and have not ended. See `Engine.cancel_all`."""
        return Answers(*await self._here.act_on_all(filter, is_cancel=True))

    async def resume_all(self, **filter: Unpack[Filter]) -> Answers:
        """Continues all executions that match. See `Engine.resume_all`."""
        return Answers(*await self._here.act_on_all(filter, is_cancel=False))

    async def count(self, **filter: Unpack[Filter]) -> int:
        """How many executions match. See `Engine.count`."""
        counted: int = await self._here.list(filter, None, 0)
        return counted

    async def list(
        self, *, after: str | None = None, limit: int = 50, **filter: Unpack[Filter]
    ) -> builtins.list[Execution]:
        """Executions that match, newest first. See `Engine.list`."""
        bounds.check_count("limit", limit, 1)
        if after is not None:
            bounds.check_storable_text("after", after)
        return [execution_of(row) for row in await self._here.list(filter, after, limit)]

    async def close(self, grace: float = 10.0) -> None:
        """Ends the engine: what runs is handed back, what is staged is flushed. See `Engine.close`.

        Args:
            grace: Longest to wait for a database that does not answer, for code that was told to unwind, and
                for bodies in threads, in seconds.
        """
        grace = bounds.checked_grace(grace)
        await self._end(grace, grace)

    async def _end(self, grace: float, patience: float) -> None:
        opened = self._opened
        if opened is None or opened.loop is None:
            return
        loop = opened.loop
        if opened.needs_shutdown or loop.is_ending:
            loop.check()
            await loop.end(opened, grace, patience)

    async def drain(self, grace: float = 30.0) -> None:
        """Ends the engine as a deploy should. See `Engine.drain`.

        Args:
            grace: Longest to wait for what runs, in seconds. Async code that is told to unwind then has
                another 10 s for that.
        """
        grace = bounds.checked_grace(grace)
        opened = self._here
        over = time.monotonic() + grace
        await opened.native.drain(grace, opened.port)
        await self._end(process_hooks.CLOSE_GRACE, max(0.0, over - time.monotonic()))

    async def work(self, grace: float = 30.0) -> None:
        """Works until the program is told to end, by SIGTERM or by SIGINT (Ctrl-C), then drains. See
        `Engine.work`.

        Args:
            grace: Longest to wait for what runs, in seconds.

        Raises:
            InvalidArgument: The loop does not run in the main thread.
            SchemaMismatch: The engine has ended by itself, because the database has, or is about to get, the
                schema of a newer version.
            StoreCorrupt: The engine has ended by itself, because the database cannot be trusted.
        """
        grace = bounds.checked_grace(grace)
        told = asyncio.Semaphore(0)
        with calling_on(asyncio.get_running_loop(), told.release):
            await self._until(told)
            draining = asyncio.ensure_future(self.drain(grace))
            again = asyncio.ensure_future(told.acquire())
            try:
                await asyncio.wait([draining, again], return_when=asyncio.FIRST_COMPLETED)
                if not draining.done():
                    await self._end(process_hooks.CLOSE_GRACE, 0.0)
                await draining
            finally:
                # also if this is cancelled: the engine takes nothing new from then on, and can be closed
                for task in (draining, again):
                    task.cancel()
                await wait_until_done([draining, again])

    async def _until(self, told: asyncio.Semaphore) -> None:
        """Waits until the program is told to end; raises if the engine ends by itself."""
        opened = self._here
        ended = asyncio.ensure_future(opened.native.wait_until_ended(opened.port))
        first = asyncio.ensure_future(told.acquire())
        try:
            await asyncio.wait([ended, first], return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                with contextlib.suppress(EngineClosed):
                    ended.result()
                # the program that closed the engine goes on
                await first
        finally:
            for task in (ended, first):
                task.cancel()
            await wait_until_done([ended, first])

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _let_go(opening: asyncio.Future[Opened]) -> None:
    if opening.exception() is None:
        opening.result().release()


__all__ = ["AsyncEngine"]
