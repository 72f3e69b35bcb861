"""How executions are started."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import MethodType
from typing import Any, ParamSpec, TypeVar, cast, overload

from stepfast import bounds
from stepfast.due import Due
from stepfast.errors import Invalid
from stepfast.handle import AsyncHandle, Handle
from stepfast.queue import Ticket
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
        ticket: Where it stands whenever it is queued: queue, key, priority.
        due: When it may begin: whether that is an instant, and in microseconds.
        run_timeout: The same as timeout, from when it begins on.
    """

    workflow_id: str | None = None
    timeout: float | None = None
    patience: float | None = None
    ticket: Ticket | None = None
    due: Due | None = None
    run_timeout: float | None = None

    def __post_init__(self) -> None:
        bounds.of_order(self.workflow_id, self.timeout, self.patience)
        bounds.limit("run_timeout", self.run_timeout)

    @property
    def timeouts(self) -> tuple[float | None, float | None] | None:
        """What limits how long it takes: from its acceptance, and from when it begins."""
        if self.timeout is None and self.run_timeout is None:
            return None
        return self.timeout, self.run_timeout


#: How an engine does as it is ordered: with a workflow, its arguments by position and by name, and the order.
Doing = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any], Order], Any]


class Options:
    """An engine that starts executions with options: `engine.options(timeout=60).start(checkout, order)`."""

    def __init__(self, start: Doing, run: Doing, order: Order) -> None:
        self._start, self._run, self._order = start, run, order

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


def check_names(workflow: Callable[..., Any], kwargs: dict[str, Any]) -> None:
    """Refuses a workflow_id that the workflow would get as an argument, and has no parameter for: nobody
    would notice that starting is not idempotent.

    Raises:
        Invalid: It is there.
    """
    if "workflow_id" not in kwargs:
        return
    found, _ = unbound(workflow, ())
    if not isinstance(found, Workflow):
        return
    parameters = inspect.signature(found.function).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if "workflow_id" not in parameters and not takes_any:
        raise Invalid(
            f"workflow_id= goes to {found.__name__} here, which has no such parameter: write "
            "engine.options(workflow_id=…, …)"
        )


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
