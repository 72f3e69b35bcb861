"""How executions are started."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import MethodType
from typing import Any, ParamSpec, TypeVar, cast, overload

from stepfast import bounds
from stepfast.handle import AsyncHandle, Handle
from stepfast.workflow import BoundWorkflow, Workflow

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

    def __post_init__(self) -> None:
        bounds.of_order(self.workflow_id, self.timeout, self.patience)


#: How an engine does as it is ordered: with a workflow, its arguments by position and by name, and the order.
Doing = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any], Order], Any]


class Options:
    """An engine that starts executions with options: `engine.options(timeout=60).start(checkout, order)`."""

    def __init__(self, start: Doing, run: Doing, order: Order) -> None:
        self._start, self._run, self._order = start, run, order

    def start(
        self, workflow: Workflow[P, R] | BoundWorkflow[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Handle[R]:
        """See `Engine.start`."""
        handle: Handle[R] = self._start(workflow, args, kwargs, self._order)
        return handle

    def run(self, workflow: Workflow[P, R] | BoundWorkflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """See `Engine.run`."""
        output: R = self._run(workflow, args, kwargs, self._order)
        return output


class AsyncOptions:
    """An engine that starts executions with options: `engine.options(timeout=60).start(checkout, order)`."""

    def __init__(self, start: Doing, run: Doing, order: Order) -> None:
        self._start, self._run, self._order = start, run, order

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
        """See `AsyncEngine.start`."""
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
        """See `AsyncEngine.run`."""
        return self._run(workflow, args, kwargs, self._order)


def unbound(
    workflow: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The workflow itself and all of its arguments, if it is a method."""
    if isinstance(workflow, BoundWorkflow):
        bound = cast("Any", workflow)
        return bound.workflow, (bound.instance, *args)
    if isinstance(workflow, MethodType):
        # a classmethod, in Python 3.13 and newer
        function: Any = workflow.__func__
        return function, (workflow.__self__, *args)
    return workflow, args


__all__ = ["AsyncOptions", "Options"]
