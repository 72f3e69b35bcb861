"""How executions are started."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from stepfast.handle import AsyncHandle, Handle
from stepfast.workflow import BoundWorkflow, Workflow

if TYPE_CHECKING:
    from stepfast.async_engine import AsyncEngine
    from stepfast.engine import Engine

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Order:
    """How an execution is started.

    Attributes:
        workflow_id: Its id; a time-ordered one is minted if there is none.
        timeout: After so many seconds it is cancelled unless it has ended.
        patience: So many seconds a caller waits for a database that does not answer; then `Unavailable`.
    """

    workflow_id: str | None = None
    timeout: float | None = None
    patience: float | None = None


class Options:
    """An engine that starts executions with options: `engine.options(timeout=60).start(checkout, order)`."""

    def __init__(self, engine: Engine, order: Order) -> None:
        self._engine, self._order = engine, order

    def start(
        self, workflow: Workflow[P, R] | BoundWorkflow[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Handle[R]:
        """See `Engine.start`."""
        return self._engine._start(workflow, args, kwargs, self._order)

    def run(self, workflow: Workflow[P, R] | BoundWorkflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """See `Engine.run`."""
        output: R = self._engine._run(workflow, args, kwargs, self._order)
        return output


class AsyncOptions:
    """An engine that starts executions with options: `engine.options(timeout=60).start(checkout, order)`."""

    def __init__(self, engine: AsyncEngine, order: Order) -> None:
        self._engine, self._order = engine, order

    @overload
    def start(
        self,
        workflow: Workflow[P, Coroutine[Any, Any, R]] | BoundWorkflow[P, Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Coroutine[Any, Any, AsyncHandle[R]]: ...

    @overload
    def start(
        self, workflow: Workflow[P, R] | BoundWorkflow[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, AsyncHandle[R]]: ...

    def start(self, workflow: Any, /, *args: Any, **kwargs: Any) -> Any:
        """See `AsyncEngine.start`."""
        return self._engine._start(workflow, args, kwargs, self._order)

    @overload
    def run(
        self,
        workflow: Workflow[P, Coroutine[Any, Any, R]] | BoundWorkflow[P, Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Coroutine[Any, Any, R]: ...

    @overload
    def run(
        self, workflow: Workflow[P, R] | BoundWorkflow[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...

    def run(self, workflow: Any, /, *args: Any, **kwargs: Any) -> Any:
        """See `AsyncEngine.run`."""
        return self._engine._run(workflow, args, kwargs, self._order)


def unbound(
    workflow: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The workflow itself and all of its arguments, if it is a method."""
    if isinstance(workflow, BoundWorkflow):
        return workflow.workflow, (workflow.instance, *args)
    function = getattr(workflow, "__func__", None)
    if isinstance(function, Workflow):
        # a classmethod
        return function, (workflow.__self__, *args)  # type: ignore[attr-defined]
    return workflow, args


__all__ = ["AsyncOptions", "Options"]
