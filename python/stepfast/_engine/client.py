"""`Client` and `AsyncClient`: engines that run nothing."""

from __future__ import annotations

import functools
from collections.abc import Coroutine, Mapping
from datetime import datetime
from typing import Any, Final, NoReturn, ParamSpec, TypeVar, cast, overload

from stepfast._engine.async_engine import AsyncEngine
from stepfast._engine.base import Opened
from stepfast._engine.engine import Engine
from stepfast._engine.handle import AsyncHandle, Handle
from stepfast._engine.options import AsyncClientOptions, ClientOptions
from stepfast._options.queue import OnDuplicate, OnFull, Queue
from stepfast._validation import bounds
from stepfast._workflow.workflow import BoundWorkflow, Workflow
from stepfast.errors import InvalidArgument

P = ParamSpec("P")
R = TypeVar("R")

#: What an engine needs to run, and a client does not.
NOTHING: dict[str, Any] = {
    "max_running": 1,
    "suspend_after": 5.0,
    "value_limit": 1,
    "threads": 1,
    "processes": None,
    "is_client": True,
}


#: Why a client cannot work.
IDLE: Final = "a client runs nothing: a worker is an Engine, or an AsyncEngine, on the same URL"


class Client(Engine):
    """Starts executions that workers elsewhere run, waits for them, cancels, resumes and lists them: for web
    processes that hand work on. Safe to be used by any number of threads.

    An `Engine` in all but running. `start` and `run` take a workflow, or only the name of one, as text: its
    code need not be in this program. Those who wait share one listener, and one question to the store at a
    time, however many there are.

    Args:
        url: The store: `postgres://…` or `sqlite://shop.db`, the same as the workers have.

    Raises:
        InvalidArgument: The store cannot be opened.
        StoreCorrupt: The store is damaged.
        SchemaMismatch: The store has the schema of a newer version of Stepfast.
        StoreUnavailable: The database server is unreachable.
    """

    _options_of = ClientOptions

    def __init__(self, url: str) -> None:
        bounds.check_store_url(url)
        self._opened = Opened(url, **NOTHING)

    @overload
    def start(
        self, workflow: Workflow[P, R] | BoundWorkflow[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Handle[R]: ...

    @overload
    def start(
        self,
        workflow: Workflow[..., R] | BoundWorkflow[..., R],
        /,
        *args: Any,
        workflow_id: str | None,
        **kwargs: Any,
    ) -> Handle[R]: ...

    @overload
    def start(
        self, workflow: str, /, *args: Any, workflow_id: str | None = None, **kwargs: Any
    ) -> Handle[Any]: ...

    def start(  # type: ignore[misc] # as of the engine
        self, workflow: Any, /, *args: Any, workflow_id: str | None = None, **kwargs: Any
    ) -> Any:
        """See `Engine.start`. The workflow may be given by its name: then what the handle's `result` returns
        is not known to type checkers."""
        return super().start(workflow, *args, workflow_id=workflow_id, **kwargs)

    @overload
    def enqueue(
        self,
        queue: str | Queue,
        workflow: Workflow[P, R] | BoundWorkflow[P, R],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Handle[R]: ...

    @overload
    def enqueue(self, queue: str | Queue, workflow: str, /, *args: Any, **kwargs: Any) -> Handle[Any]: ...

    def enqueue(self, queue: str | Queue, workflow: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Puts an execution into a queue. See `Engine.enqueue`. The workflow may be given by its name."""
        return super().enqueue(queue, workflow, *args, **kwargs)

    @overload
    def run(
        self, workflow: Workflow[P, R] | BoundWorkflow[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...

    @overload
    def run(
        self,
        workflow: Workflow[..., R] | BoundWorkflow[..., R],
        /,
        *args: Any,
        workflow_id: str | None,
        **kwargs: Any,
    ) -> R: ...

    @overload
    def run(self, workflow: str, /, *args: Any, workflow_id: str | None = None, **kwargs: Any) -> Any: ...

    def run(  # type: ignore[misc] # as of the engine
        self, workflow: Any, /, *args: Any, workflow_id: str | None = None, **kwargs: Any
    ) -> Any:
        """Starts an execution and waits for its output. See `start`, and `Engine.run`."""
        return super().run(workflow, *args, workflow_id=workflow_id, **kwargs)

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
    ) -> ClientOptions:
        """The client, to start executions with options. See `Engine.options`."""
        return cast(
            "ClientOptions",
            super().options(
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

    def work(self, grace: float = 30.0) -> NoReturn:
        """Not for clients: they run nothing.

        Args:
            grace: Of no use.

        Raises:
            InvalidArgument: Always.
        """
        raise InvalidArgument(IDLE)


class AsyncClient(AsyncEngine):
    """Like `Client`, for programs with an event loop. To be used from the loop that it was opened on, as
    `async with AsyncClient(url) as client:`.

    Args:
        url: The store: `postgres://…` or `sqlite://shop.db`, the same as the workers have.

    Raises:
        InvalidArgument: The URL is no text.
    """

    _options_of = AsyncClientOptions

    def __init__(self, url: str) -> None:
        bounds.check_store_url(url)
        self._opened = None
        self._open = functools.partial(Opened, url, **NOTHING)

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

    @overload
    async def start(
        self, workflow: str, /, *args: Any, workflow_id: str | None = None, **kwargs: Any
    ) -> AsyncHandle[Any]: ...

    async def start(  # type: ignore[misc]  # pyright: ignore[reportIncompatibleMethodOverride] # as of the engine
        self, workflow: Any, /, *args: Any, workflow_id: str | None = None, **kwargs: Any
    ) -> Any:
        """See `AsyncEngine.start`. The workflow may be given by its name: then what the handle's `result`
        returns is not known to type checkers."""
        return await super().start(workflow, *args, workflow_id=workflow_id, **kwargs)

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

    @overload
    async def enqueue(
        self, queue: str | Queue, workflow: str, /, *args: Any, **kwargs: Any
    ) -> AsyncHandle[Any]: ...

    async def enqueue(self, queue: str | Queue, workflow: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Puts an execution into a queue. See `Engine.enqueue`. The workflow may be given by its name."""
        return await super().enqueue(queue, workflow, *args, **kwargs)

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

    @overload
    async def run(
        self, workflow: str, /, *args: Any, workflow_id: str | None = None, **kwargs: Any
    ) -> Any: ...

    async def run(  # type: ignore[misc]  # pyright: ignore[reportIncompatibleMethodOverride] # as of the engine
        self, workflow: Any, /, *args: Any, workflow_id: str | None = None, **kwargs: Any
    ) -> Any:
        """Starts an execution and waits for its output. See `start`, and `AsyncEngine.run`."""
        return await super().run(workflow, *args, workflow_id=workflow_id, **kwargs)

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
    ) -> AsyncClientOptions:
        """The client, to start executions with options. See `Engine.options`."""
        return cast(
            "AsyncClientOptions",
            super().options(
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

    async def work(self, grace: float = 30.0) -> NoReturn:
        """Not for clients: they run nothing.

        Args:
            grace: Of no use.

        Raises:
            InvalidArgument: Always.
        """
        raise InvalidArgument(IDLE)


__all__ = ["AsyncClient", "Client"]
