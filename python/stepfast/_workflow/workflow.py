"""Workflows: functions that go on after a crash from what is recorded."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, TypeVar, cast, overload

from stepfast._options.start_options import StartOptions, order_of
from stepfast._runtime.branch import current_branch
from stepfast._runtime.exceptions_here import execution_entry
from stepfast._validation import bounds
from stepfast._validation.coroutine_function import CoroutineFunction
from stepfast._validation.names import location_of, qualified_name
from stepfast._validation.signature import signature_of
from stepfast._workflow.child import AsyncChild, Child, elsewhere, start_child
from stepfast._workflow.step import Nobody
from stepfast._workflow.time_limit_check import warn_of_limits
from stepfast.errors import InvalidArgument

if TYPE_CHECKING:
    from datetime import datetime

    from stepfast import _native
    from stepfast._options.queue import Queue
    from stepfast._runtime.host import Host

P = ParamSpec("P")
A = ParamSpec("A")
R = TypeVar("R", covariant=True)
T = TypeVar("T")
S = TypeVar("S")


class Workflow(CoroutineFunction, Generic[P, R]):
    """A workflow function. Engines know it by its name. Called in a workflow it runs as a child; elsewhere
    it is a plain call.

    Attributes:
        name: The name under which its executions are recorded.
    """

    __name__: str
    __qualname__: str
    __wrapped__: Callable[P, R]

    def __init__(self, function: Callable[P, R], *, name: str | None, eager: bool) -> None:
        if name is not None:
            bounds.check_name("name", name)
        bounds.check_flag("eager", eager)
        bounds.check_function("workflow", function)
        self.function = function
        self.__stepfast__ = True
        self.name: str = name or qualified_name(function)
        self.eager = eager
        self.is_async: bool = inspect.iscoroutinefunction(function)
        self.signature: _native.Signature | None = signature_of(function)
        if self.is_async:
            execution_entry(function)
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        branch = current_branch()
        if branch is None:
            return self.function(*args, **kwargs)
        return cast("R", called(self, branch, args, kwargs))

    def in_thread(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, R]:
        """For async workflows: the sync workflow as a child, which runs on a thread.

        Raises:
            InvalidArgument: The workflow is async, or this is not the code of an async workflow.
            WorkflowCancelled: The child was cancelled, but this workflow was not.
            Exception: What the child has raised; `WorkflowFailed` where no code of Python has.
        """
        return called_in_thread(self, args, kwargs)

    def options(
        self,
        *,
        queue: str | Queue | None = None,
        key: str | None = None,
        priority: int | None = None,
        delay: float | None = None,
        start_at: datetime | None = None,
        run_timeout: float | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> PlacedWorkflow[P, R]:
        """In a workflow: the workflow as a child with options, as in
        `send.options(queue="emails").start("ann")`. To start executions elsewhere there is `Engine.options`.

        Args:
            queue: The queue that it waits in until a worker takes it, by its name or as a `Queue`; it must
                have been declared. What a workflow starts in a full queue is never refused. None by default.
            key: Its key within the queue. None by default.
            priority: Smaller comes first among those of its queue and key; 0 by default.
            delay: It begins not before so many seconds after it was started. At once by default.
            start_at: The same as a time: a datetime with a time zone, by the clock of the database.
            run_timeout: It is cancelled unless it has ended so many seconds after it has begun; never by
                default.
            attributes: Names with values that it is found by; see `Engine.options`. None by default.

        Returns:
            What has the same `start`, `start_detached` and `in_thread` as the workflow, and can be called.

        Raises:
            InvalidArgument: An option is out of its bounds.
        """
        return PlacedWorkflow(
            self,
            (),
            order_of(
                queue=queue,
                key=key,
                priority=priority,
                delay=delay,
                start_at=start_at,
                run_timeout=run_timeout,
                attributes=attributes,
            ),
        )

    @overload
    async def start(  # type: ignore[overload-overlap] # what is async comes first
        self: Workflow[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncChild[T]: ...

    @overload
    def start(self, /, *args: P.args, **kwargs: P.kwargs) -> Child[R]: ...

    def start(self, /, *args: Any, **kwargs: Any) -> Any:
        """In a workflow: starts a child, to be awaited later by its `result`. The child is cancelled
        with the workflow.

        Raises:
            InvalidArgument: This is not the code of a workflow: there `engine.start` starts executions.
        """
        return start_child(self, args, kwargs)

    @overload
    async def start_detached(  # type: ignore[overload-overlap] # what is async comes first
        self: Workflow[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> str: ...

    @overload
    def start_detached(self, /, *args: P.args, **kwargs: P.kwargs) -> str: ...

    def start_detached(self, /, *args: Any, **kwargs: Any) -> Any:
        """In a workflow: starts an execution that the workflow does not wait for, and that is not cancelled
        with it.

        Returns:
            Its workflow_id.

        Raises:
            InvalidArgument: This is not the code of a workflow: there `engine.start` starts executions.
        """
        return start_child(self, args, kwargs, is_detached=True)

    @overload
    def __get__(  # type: ignore[misc] # see `Step.__get__`
        self: Callable[Concatenate[Nobody, A], R], instance: object, owner: type
    ) -> Workflow[..., Any]: ...

    @overload
    def __get__(  # type: ignore[misc]
        self: Callable[Concatenate[type[T], A], R], instance: T | None, owner: type[T]
    ) -> BoundWorkflow[A, R]: ...

    @overload
    def __get__(self, instance: None, owner: type) -> Workflow[P, R]: ...

    @overload
    def __get__(self: Callable[Concatenate[S, A], R], instance: S, owner: type) -> BoundWorkflow[A, R]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> Workflow[P, R]: ...

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else BoundWorkflow(self, instance)

    def _returns_coroutine(self) -> bool:
        return self.is_async

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"

    def __rich_repr__(self) -> Iterator[Any]:
        yield self.name


class BoundWorkflow(CoroutineFunction, Generic[P, R]):
    """A workflow that is a method, with the object that it is called on: its first argument, which is
    recorded with the others."""

    def __init__(self, workflow: Workflow[..., R], instance: object) -> None:
        self.workflow: Workflow[..., R] = workflow
        self.instance: object = instance

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.workflow(self.instance, *args, **kwargs)

    def in_thread(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, R]:
        """See `Workflow.in_thread`."""
        return self.workflow.in_thread(self.instance, *args, **kwargs)

    @overload
    async def start(  # type: ignore[overload-overlap] # what is async comes first
        self: BoundWorkflow[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncChild[T]: ...

    @overload
    def start(self, /, *args: P.args, **kwargs: P.kwargs) -> Child[R]: ...

    def start(self, /, *args: Any, **kwargs: Any) -> Any:
        """See `Workflow.start`."""
        return start_child(self.workflow, (self.instance, *args), kwargs)

    @overload
    async def start_detached(  # type: ignore[overload-overlap] # what is async comes first
        self: BoundWorkflow[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> str: ...

    @overload
    def start_detached(self, /, *args: P.args, **kwargs: P.kwargs) -> str: ...

    def start_detached(self, /, *args: Any, **kwargs: Any) -> Any:
        """See `Workflow.start_detached`."""
        return start_child(self.workflow, (self.instance, *args), kwargs, is_detached=True)

    def options(
        self,
        *,
        queue: str | Queue | None = None,
        key: str | None = None,
        priority: int | None = None,
        delay: float | None = None,
        start_at: datetime | None = None,
        run_timeout: float | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> PlacedWorkflow[P, R]:
        """See `Workflow.options`."""
        order = order_of(
            queue=queue,
            key=key,
            priority=priority,
            delay=delay,
            start_at=start_at,
            run_timeout=run_timeout,
            attributes=attributes,
        )
        return PlacedWorkflow(self.workflow, (self.instance,), order)

    def _returns_coroutine(self) -> bool:
        return self.workflow.is_async

    def __repr__(self) -> str:
        return f"<workflow {self.workflow.name} of {self.instance!r}>"


class PlacedWorkflow(CoroutineFunction, Generic[P, R]):
    """A workflow that is started as a child with options: what `Workflow.options` returns."""

    def __init__(self, workflow: Workflow[..., R], before: tuple[Any, ...], order: StartOptions) -> None:
        self._workflow, self._before, self._order = workflow, before, order

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        branch = current_branch()
        if branch is None:
            raise elsewhere(self._workflow)
        return cast("R", called(self._workflow, branch, (*self._before, *args), kwargs, self._order))

    def in_thread(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, R]:
        """See `Workflow.in_thread`."""
        return called_in_thread(self._workflow, (*self._before, *args), kwargs, self._order)

    @overload
    async def start(  # type: ignore[overload-overlap] # what is async comes first
        self: PlacedWorkflow[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncChild[T]: ...

    @overload
    def start(self, /, *args: P.args, **kwargs: P.kwargs) -> Child[R]: ...

    def start(self, /, *args: Any, **kwargs: Any) -> Any:
        """See `Workflow.start`."""
        return start_child(self._workflow, (*self._before, *args), kwargs, order=self._order)

    @overload
    async def start_detached(  # type: ignore[overload-overlap] # what is async comes first
        self: PlacedWorkflow[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> str: ...

    @overload
    def start_detached(self, /, *args: P.args, **kwargs: P.kwargs) -> str: ...

    def start_detached(self, /, *args: Any, **kwargs: Any) -> Any:
        """See `Workflow.start_detached`."""
        args = (*self._before, *args)
        return start_child(self._workflow, args, kwargs, is_detached=True, order=self._order)

    def _returns_coroutine(self) -> bool:
        return self._workflow.is_async

    def __repr__(self) -> str:
        return f"<workflow {self._workflow.name} with options>"


def called(
    workflow: Workflow[..., Any],
    branch: _native.Branch,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    order: StartOptions | None = None,
) -> Any:
    """What it comes to as a child, or what to await for that."""
    if workflow.is_async and not branch.is_on_loop:
        raise InvalidArgument(
            f"workflow {workflow.name!r} is async, but the one that calls it is not: make that async, or "
            "this sync"
        )
    if branch.is_on_loop and not workflow.is_async:
        raise InvalidArgument(
            f"workflow {workflow.name!r} is sync, and waiting for it would block the event loop of an async "
            f"one: make it async, or write await {workflow.function.__name__}.in_thread(...)"
        )
    opened = branch.host
    number = opened.number(workflow)
    if workflow.is_async:
        return branch.child(opened.native, number, args, kwargs, False, order)
    return opened.threads.run_child(branch, number, args, kwargs, order)


def called_in_thread(
    workflow: Workflow[..., R],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    order: StartOptions | None = None,
) -> Coroutine[object, None, R]:
    """What to await for what it comes to as a child that runs on a thread."""
    branch = current_branch()
    if workflow.is_async or branch is None or not branch.is_on_loop:
        raise InvalidArgument(
            f"in_thread is for async workflows that call sync ones; {workflow.name!r} is called elsewhere"
        )
    opened = branch.host
    return branch.child(opened.native, opened.number(workflow), args, kwargs, False, order)


_registered: Final[dict[str, Workflow[..., Any]]] = {}
#: Engines that follow when a workflow is defined again, as in a notebook whose cells are run again.
open_engines: Final[weakref.WeakSet[Host]] = weakref.WeakSet()


def registered() -> list[Workflow[..., Any]]:
    """All workflows that have been defined, in order of their names."""
    return [_registered[name] for name in sorted(_registered)]


def register(workflow: Workflow[..., Any]) -> None:
    """Keeps a workflow for engines to find."""
    known = _registered.get(workflow.name)
    if known is not None and location_of(known.function) != location_of(workflow.function):
        raise InvalidArgument(
            f"two workflows are called {workflow.name!r}, in {location_of(known.function)} and in "
            f"{location_of(workflow.function)}; give one of them another name: @workflow(name=...)"
        )
    following = [opened for opened in open_engines if not opened.is_closed] if known is not None else []
    if known is not None and is_variant(known, workflow) and any(known in it.numbers for it in following):
        raise InvalidArgument(
            f"workflow {workflow.name!r} is made again, by the same code with other values, while an engine "
            f"is open that knows the first one: executions of that would go on with the new one. {OWN_NAMES}"
        )
    _registered[workflow.name] = workflow
    for opened in following:
        opened.redefine(workflow)


#: What to do where one function makes several workflows.
OWN_NAMES: Final = 'Let the function that makes them give each a name of its own: @workflow(name=f"…")'


def is_variant(one: Workflow[..., Any], other: Workflow[..., Any]) -> bool:
    """True for workflows of one code that differ in what is around it: closures, or defaults of arguments."""
    functions: list[Any] = [inspect.unwrap(one.function), inspect.unwrap(other.function)]
    codes = [getattr(function, "__code__", function) for function in functions]
    return one is not other and codes[0] is codes[1] and values_of(functions[0]) != values_of(functions[1])


def values_of(function: Any) -> list[int]:
    """What tells the values apart that are around the code of a function."""
    cells = getattr(function, "__closure__", None) or ()
    found: list[Any] = [*(getattr(function, "__defaults__", None) or ())]
    found += (getattr(function, "__kwdefaults__", None) or {}).values()
    for cell in cells:
        try:
            found.append(cell.cell_contents)
        except ValueError:
            # not set yet
            found.append(cell)
    return [id(value) for value in found]


def refuse_replaced(workflow: Any) -> None:
    """Refuses a workflow whose name another one has by now, of the same code with other values.

    Raises:
        InvalidArgument: It is one.
    """
    if not isinstance(workflow, Workflow):
        return
    given = cast("Workflow[..., Any]", workflow)
    current = _registered.get(given.name)
    if current is not None and is_variant(given, current):
        raise InvalidArgument(
            f"another workflow with the name {given.name!r} has taken its place, of the same code with "
            f"other values. {OWN_NAMES}"
        )


@overload
def workflow(function: Callable[P, R], /) -> Workflow[P, R]: ...


@overload
def workflow(
    *, name: str | None = None, eager: bool = True
) -> Callable[[Callable[P, R]], Workflow[P, R]]: ...


def workflow(
    function: Callable[..., Any] | None = None, /, *, name: str | None = None, eager: bool = True
) -> Any:
    """Makes a workflow of a function, or of a method: `@workflow`, or `@workflow(name="checkout")`. It
    belongs to no engine: each engine knows all that were made before it was opened.

    Args:
        function: The code: sync or async. After a crash it runs again from its beginning, and finds the
            recorded outcomes of its steps.
        name: What is recorded, and how its code is found again after a crash or a deploy, at most 255 bytes;
            the function's qualified name by default.
        eager: With False its code sees a step's outcome only when that is durable: for code that shows
            such values to the world between steps.

    Raises:
        InvalidArgument: It is no function, another workflow has the name, or an option is out of its bounds.
    """

    def made(function: Callable[..., Any]) -> Workflow[..., Any]:
        made = Workflow(function, name=name, eager=eager)
        register(made)
        if made.is_async:
            warn_of_limits(made.name, function)
        return made

    return made if function is None else made(function)


__all__ = ["BoundWorkflow", "PlacedWorkflow", "Workflow", "workflow"]
