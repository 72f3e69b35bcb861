"""How executions are started."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, ParamSpec, TypeVar, overload

from stepfast._engine.handle import AsyncHandle, Handle
from stepfast._options.start_options import StartOptions
from stepfast._workflow.binding import unbind
from stepfast._workflow.workflow import BoundWorkflow, Workflow
from stepfast.errors import InvalidArgument

P = ParamSpec("P")
R = TypeVar("R")


#: How an engine does as it is ordered: with a workflow, its arguments by position and by name, and the order.
Doing = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any], StartOptions | None], Any]
#: The same for many: with a workflow, the arguments of each, and the order.
DoingMany = Callable[[Callable[..., Any], Iterable[tuple[Any, ...]], StartOptions | None], Any]


class Options:
    """An engine that starts executions with options: `engine.options(timeout=60).start(checkout, order)`."""

    def __init__(self, start: Doing, run: Doing, start_many: DoingMany, order: StartOptions) -> None:
        self._start, self._run, self._start_many, self._order = start, run, start_many, order

    def start(
        self, workflow: Workflow[P, R] | BoundWorkflow[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Handle[R]:
        """See `Engine.start`. All arguments by name are the workflow's: `workflow_id` stands in `options`."""
        check_names(workflow, kwargs)
        handle: Handle[R] = self._start(workflow, args, kwargs, self._order)
        return handle

    def run(self, workflow: Workflow[P, R] | BoundWorkflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """See `Engine.run`. All arguments by name are the workflow's: `workflow_id` stands in `options`."""
        check_names(workflow, kwargs)
        output: R = self._run(workflow, args, kwargs, self._order)
        return output

    def start_many(
        self, workflow: Workflow[..., R] | BoundWorkflow[..., R], items: Iterable[tuple[Any, ...]], /
    ) -> list[Handle[R]]:
        """See `Engine.start_many`."""
        handles: list[Handle[R]] = self._start_many(workflow, items, self._order)
        return handles


class AsyncOptions:
    """An engine that starts executions with options: `engine.options(timeout=60).start(checkout, order)`."""

    def __init__(self, start: Doing, run: Doing, start_many: DoingMany, order: StartOptions) -> None:
        self._start, self._run, self._start_many, self._order = start, run, start_many, order

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

    def start(self, workflow: Any, /, *args: Any, **kwargs: Any) -> Any:
        """See `AsyncEngine.start`. All arguments by name are the workflow's: `workflow_id` stands in
        `options`."""
        check_names(workflow, kwargs)
        return self._start(workflow, args, kwargs, self._order)

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

    def run(self, workflow: Any, /, *args: Any, **kwargs: Any) -> Any:
        """See `AsyncEngine.run`. All arguments by name are the workflow's: `workflow_id` stands in
        `options`."""
        check_names(workflow, kwargs)
        return self._run(workflow, args, kwargs, self._order)

    @overload
    async def start_many(
        self,
        workflow: Workflow[..., Coroutine[Any, Any, R]] | BoundWorkflow[..., Coroutine[Any, Any, R]],
        items: Iterable[tuple[Any, ...]],
        /,
    ) -> list[AsyncHandle[R]]: ...

    @overload
    async def start_many(
        self, workflow: Workflow[..., R] | BoundWorkflow[..., R], items: Iterable[tuple[Any, ...]], /
    ) -> list[AsyncHandle[R]]: ...

    def start_many(self, workflow: Any, items: Any, /) -> Any:
        """See `Engine.start_many`."""
        return self._start_many(workflow, items, self._order)


class ClientOptions(Options):
    """A client that starts executions with options: `client.options(timeout=60).start("checkout", order)`."""

    @overload
    def start(
        self, workflow: Workflow[P, R] | BoundWorkflow[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Handle[R]: ...

    @overload
    def start(self, workflow: str, /, *args: Any, **kwargs: Any) -> Handle[Any]: ...

    def start(self, workflow: Any, /, *args: Any, **kwargs: Any) -> Any:
        """See `Client.start`. All arguments by name are the workflow's: `workflow_id` stands in `options`."""
        return super().start(workflow, *args, **kwargs)

    @overload
    def run(
        self, workflow: Workflow[P, R] | BoundWorkflow[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...

    @overload
    def run(self, workflow: str, /, *args: Any, **kwargs: Any) -> Any: ...

    def run(self, workflow: Any, /, *args: Any, **kwargs: Any) -> Any:
        """See `Client.run`. All arguments by name are the workflow's: `workflow_id` stands in `options`."""
        return super().run(workflow, *args, **kwargs)

    @overload
    def start_many(
        self, workflow: Workflow[..., R] | BoundWorkflow[..., R], items: Iterable[tuple[Any, ...]], /
    ) -> list[Handle[R]]: ...

    @overload
    def start_many(self, workflow: str, items: Iterable[tuple[Any, ...]], /) -> list[Handle[Any]]: ...

    def start_many(self, workflow: Any, items: Iterable[tuple[Any, ...]], /) -> Any:
        """See `Engine.start_many`."""
        return super().start_many(workflow, items)


class AsyncClientOptions(AsyncOptions):
    """A client that starts executions with options: `client.options(timeout=60).start("checkout", order)`."""

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
    async def start(self, workflow: str, /, *args: Any, **kwargs: Any) -> AsyncHandle[Any]: ...

    def start(self, workflow: Any, /, *args: Any, **kwargs: Any) -> Any:
        """See `AsyncClient.start`. All arguments by name are the workflow's: `workflow_id` stands in
        `options`."""
        return super().start(workflow, *args, **kwargs)

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
    async def run(self, workflow: str, /, *args: Any, **kwargs: Any) -> Any: ...

    def run(self, workflow: Any, /, *args: Any, **kwargs: Any) -> Any:
        """See `AsyncClient.run`. All arguments by name are the workflow's: `workflow_id` stands in
        `options`."""
        return super().run(workflow, *args, **kwargs)

    @overload
    async def start_many(
        self,
        workflow: Workflow[..., Coroutine[Any, Any, R]] | BoundWorkflow[..., Coroutine[Any, Any, R]],
        items: Iterable[tuple[Any, ...]],
        /,
    ) -> list[AsyncHandle[R]]: ...

    @overload
    async def start_many(
        self, workflow: Workflow[..., R] | BoundWorkflow[..., R], items: Iterable[tuple[Any, ...]], /
    ) -> list[AsyncHandle[R]]: ...

    @overload
    async def start_many(
        self, workflow: str, items: Iterable[tuple[Any, ...]], /
    ) -> list[AsyncHandle[Any]]: ...

    def start_many(self, workflow: Any, items: Any, /) -> Any:
        """See `Engine.start_many`."""
        return super().start_many(workflow, items)


def check_names(workflow: Callable[..., Any], kwargs: dict[str, Any]) -> None:
    """Refuses a workflow_id that the workflow would get as an argument, and has no parameter for: nobody
    would notice that starting is not idempotent.

    Raises:
        InvalidArgument: It is there.
    """
    if "workflow_id" not in kwargs:
        return
    found, _ = unbind(workflow, ())
    if not isinstance(found, Workflow):
        return
    parameters = inspect.signature(found.function).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if "workflow_id" not in parameters and not takes_any:
        raise InvalidArgument(
            f"workflow_id= goes to {found.__name__} here, which has no such parameter: write "
            "engine.options(workflow_id=…, …)"
        )


__all__ = ["AsyncClientOptions", "AsyncOptions", "ClientOptions", "Options"]
