"""Workflows: functions whose executions continue from their record after a crash."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar, Unpack, cast, overload

from stepfast._options.batch_options import ChildBatchOptions
from stepfast._options.start_options import CheckedOptions, StartOptions, check_options
from stepfast._runtime.branch import current_branch
from stepfast._runtime.code_exceptions import execution_entry
from stepfast._validation import bounds
from stepfast._validation.coroutine_function import CoroutineFunction
from stepfast._validation.names import qualified_name
from stepfast._validation.signature import signature_of
from stepfast._workflow.batch.child_batch import AsyncChildBatch, ChildBatch, submit_child_batch
from stepfast._workflow.child import (
    AsyncChild,
    Child,
    call_child,
    call_child_in_thread,
    continue_as_new,
    outside_workflow_error,
    start_child,
)
from stepfast._workflow.direct_call import warn_of_direct_call
from stepfast._workflow.registry import open_engines, register
from stepfast._workflow.startable import Startable
from stepfast._workflow.step import Unmatchable
from stepfast._workflow.time_limit_check import warn_of_limits

if TYPE_CHECKING:
    from stepfast import _native

P = ParamSpec("P")
A = ParamSpec("A")
R = TypeVar("R", covariant=True)
T = TypeVar("T")
S = TypeVar("S")


class _LocalWorkflow(CoroutineFunction, Startable[P, R]):
    """Base of workflows whose code is in this program, and which therefore can run as children."""

    def _child_parts(self) -> tuple[Workflow[..., Any], tuple[Any, ...], CheckedOptions | None]:
        """Returns the workflow itself, its bound arguments, and the options of its start."""
        raise NotImplementedError

    def options(self, **options: Unpack[StartOptions]) -> ConfiguredWorkflow[P, R]:
        """Returns the workflow with options for its start. All calls that take a workflow accept the returned
        object: `engine.start(send.options(queue="emails"), "ann")`. In a workflow it starts a child:
        `send.options(queue="emails").start("ann")`.

        A further call adds options, and replaces those that are given again:
        `send.options(queue="emails").options(key="ann")` has both.

        Children take all options except `debounce`, `max_delay`, `wait_timeout` and `on_full`. Children that
        the parent may await take no `workflow_id` and no `dedup_id` either. Children of `start_detached` take
        both.

        Args:
            options: The options by name; see `StartOptions`.

        Raises:
            InvalidArgument: An option is out of its bounds, or does not go with another one.
        """
        workflow, bound_args, before = self._child_parts()
        given = options if before is None else {**before.values, **options}
        return ConfiguredWorkflow(workflow, bound_args, check_options(given))

    def in_thread(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, R]:
        """Runs this sync workflow as a child, in a thread, and returns an awaitable of its output. For the
        code of async workflows.

        Raises:
            InvalidArgument: The workflow is async, or the caller is not the code of an async workflow.
            WorkflowCancelled: The child was cancelled, but this workflow was not.
            Exception: The exception that the child has raised; `WorkflowFailed` if the child failed without
                an exception of Python.
        """
        workflow, bound_args, options = self._child_parts()
        return call_child_in_thread(workflow, (*bound_args, *args), kwargs, options)

    @overload
    async def start(  # type: ignore[overload-overlap] # the overload for async code comes first
        self: _LocalWorkflow[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncChild[T]: ...

    @overload
    def start(self, /, *args: P.args, **kwargs: P.kwargs) -> Child[R]: ...

    def start(self, /, *args: Any, **kwargs: Any) -> Any:
        """Starts a child in the code of a workflow. The method `result` of the returned object waits for the
        child's output. Cancelling the workflow also cancels the child.

        Raises:
            InvalidArgument: The caller is not the code of a workflow. Other code uses `engine.start`.
        """
        workflow, bound_args, options = self._child_parts()
        return start_child(workflow, (*bound_args, *args), kwargs, options=options)

    @overload
    async def start_detached(  # type: ignore[overload-overlap] # the overload for async code comes first
        self: _LocalWorkflow[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> str: ...

    @overload
    def start_detached(self, /, *args: P.args, **kwargs: P.kwargs) -> str: ...

    def start_detached(self, /, *args: Any, **kwargs: Any) -> Any:
        """Starts a detached child in the code of a workflow. The workflow does not wait for the child, and
        cancelling the workflow does not cancel the child.

        If an execution of the same workflow and arguments already has the `workflow_id` of the `options`,
        the call returns the id of that execution.

        Returns:
            The execution's workflow_id.

        Raises:
            InvalidArgument: The caller is not the code of a workflow. Other code uses `engine.start`.
            WorkflowIdConflict: The workflow_id belongs to another workflow, or to other arguments.
            DedupConflict: An unfinished execution of the queue has the `dedup_id`.
        """
        workflow, bound_args, options = self._child_parts()
        return start_child(workflow, (*bound_args, *args), kwargs, is_detached=True, options=options)

    @overload
    async def continue_as_new(  # type: ignore[overload-overlap] # the overload for async code comes first
        self: _LocalWorkflow[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> NoReturn: ...

    @overload
    def continue_as_new(self, /, *args: P.args, **kwargs: P.kwargs) -> NoReturn: ...

    def continue_as_new(self, /, *args: Any, **kwargs: Any) -> Any:
        """Ends this part of the execution, and begins the next one: the code of the workflow runs again from
        its beginning, with these arguments. Only the code of this workflow itself can continue as new:
        `loop.continue_as_new(…)` in sync code, `await loop.continue_as_new(…)` in async code. The call does
        not return.

        The workflow_id, pending messages, events, streams and attributes stay, and so does the record. A
        replay begins with the last part, so an execution that receives messages for months stays cheap.
        Tasks and branches that still run are dropped; children continue. A deadline counts from the start of
        the execution.

        Raises:
            InvalidArgument: The caller is not the code of this workflow, or the workflow has options.
            TypeError: The workflow does not take these arguments.
            EncodeError: The arguments cannot be recorded.
        """
        workflow, bound_args, options = self._child_parts()
        return continue_as_new(workflow, (*bound_args, *args), kwargs, has_options=options is not None)

    @overload
    async def submit_batch(  # type: ignore[overload-overlap] # the overload for async code comes first
        self: _LocalWorkflow[..., Coroutine[Any, Any, T]],
        inputs: Iterable[tuple[Any, ...]],
        /,
        **options: Unpack[ChildBatchOptions],
    ) -> AsyncChildBatch[T]: ...

    @overload
    def submit_batch(
        self, inputs: Iterable[tuple[Any, ...]], /, **options: Unpack[ChildBatchOptions]
    ) -> ChildBatch[R]: ...

    def submit_batch(self, inputs: Any, /, **options: Any) -> Any:
        """Submits one item per input as a batch, in the code of a workflow. Each item is an execution of this
        workflow. When the call returns, all items are durable. `wait` and `results` of the returned object
        wait for the items. Cancelling the workflow also cancels the batch.

        The submission is recorded: a replay continues with the same batch. If the submission is repeated
        before it was recorded, the inputs must be the same: read them in a step.

        Args:
            inputs: The arguments of the items by position: an iterable of tuples.
            options: The options of the batch; see `ChildBatchOptions`.

        Raises:
            InvalidArgument: The caller is not the code of a workflow, an input is no tuple, or an option is
                out of its bounds. Other code uses `engine.submit_batch`.
            EncodeError: An input cannot be recorded; the error names its index.
            WorkflowIdConflict: A repeated submission has other inputs; the error names the first that
                differs.
        """
        workflow, bound_args, configured = self._child_parts()
        return submit_child_batch(workflow, bound_args, configured, inputs, options)


class Workflow(_LocalWorkflow[P, R]):
    """A workflow function, which engines find by its name. A call in the code of a workflow runs it as a
    child. Elsewhere a call is a plain call of the function, and nothing is recorded.

    Attributes:
        name: The name under which executions of the workflow are recorded.
    """

    __name__: str
    __qualname__: str
    __wrapped__: Callable[P, R]

    def __init__(self, function: Callable[P, R], *, name: str | None, durable_reads: bool) -> None:
        if name is not None:
            bounds.check_name("name", name)
        bounds.check_flag("durable_reads", durable_reads)
        bounds.check_function("workflow", function)
        self.function = function
        self.__stepfast__ = True
        self.name: str = name or qualified_name(function)
        self.durable_reads = durable_reads
        self.is_async: bool = inspect.iscoroutinefunction(function)
        self.signature: _native.Signature | None = signature_of(function)
        #: The declaration of a graph, which engines store; None for other workflows.
        self.declaration: _native.GraphDeclaration | None = None
        if self.is_async:
            execution_entry(function)
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        branch = current_branch()
        if branch is None:
            if open_engines:
                warn_of_direct_call(self.name)
            return self.function(*args, **kwargs)
        return cast("R", call_child(self, branch, args, kwargs))

    def _child_parts(self) -> tuple[Workflow[..., Any], tuple[Any, ...], CheckedOptions | None]:
        return self, (), None

    @overload
    def __get__(  # type: ignore[misc] # see `Step.__get__`
        self: Callable[Concatenate[Unmatchable, A], R], instance: object, owner: type
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


class BoundWorkflow(_LocalWorkflow[P, R]):
    """A workflow that is a method, with the object to which it is bound. The object is the first argument,
    and is recorded with the others. A bound workflow has the methods of `Workflow`."""

    def __init__(self, workflow: Workflow[..., R], instance: object) -> None:
        self.workflow: Workflow[..., R] = workflow
        self.instance: object = instance

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.workflow(self.instance, *args, **kwargs)

    def _child_parts(self) -> tuple[Workflow[..., Any], tuple[Any, ...], CheckedOptions | None]:
        return self.workflow, (self.instance,), None

    def _returns_coroutine(self) -> bool:
        return self.workflow.is_async

    def __repr__(self) -> str:
        return f"<workflow {self.workflow.name} of {self.instance!r}>"


class ConfiguredWorkflow(_LocalWorkflow[P, R]):
    """A workflow with options for its start, as `Workflow.options` returns it. It has the methods of
    `Workflow`. A call in the code of a workflow runs it as a child. Elsewhere a call raises
    `InvalidArgument`."""

    def __init__(
        self, workflow: Workflow[..., Any], bound_args: tuple[Any, ...], start_options: CheckedOptions
    ) -> None:
        self.workflow: Workflow[..., Any] = workflow
        self.bound_args: tuple[Any, ...] = bound_args
        self.start_options: CheckedOptions = start_options

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        branch = current_branch()
        if branch is None:
            raise outside_workflow_error(self.workflow)
        arguments = (*self.bound_args, *args)
        return cast("R", call_child(self.workflow, branch, arguments, kwargs, self.start_options))

    def _child_parts(self) -> tuple[Workflow[..., Any], tuple[Any, ...], CheckedOptions | None]:
        return self.workflow, self.bound_args, self.start_options

    def _returns_coroutine(self) -> bool:
        return self.workflow.is_async

    def __repr__(self) -> str:
        return f"<workflow {self.workflow.name} with options>"


@overload
def workflow(function: Callable[P, R], /) -> Workflow[P, R]: ...


@overload
def workflow(
    *, name: str | None = None, durable_reads: bool = False
) -> Callable[[Callable[P, R]], Workflow[P, R]]: ...


def workflow(
    function: Callable[..., Any] | None = None, /, *, name: str | None = None, durable_reads: bool = False
) -> Any:
    """Makes a workflow of a function, or of a method: `@workflow`, or `@workflow(name="checkout")`. A
    workflow belongs to no engine: each engine has all workflows that were defined before the engine was
    opened.

    Args:
        function: The code, sync or async. After a crash the code runs again from its beginning, and receives
            the recorded outcomes of its steps.
        name: The recorded name, at most 255 bytes. Executions find their code by this name after a crash or a
            deploy. By default it is the function's qualified name, without the module.
        durable_reads: Whether the code receives a step's outcome only when the outcome is durable, which
            costs a flush for each step. Use it for code that shows such values to the outside world between
            steps. False by default: the code receives the outcome at once, and the next step waits until the
            outcome is durable.

    Raises:
        InvalidArgument: The value is no function, another workflow has the name, or an option is out of its
            bounds.
    """

    def decorate(function: Callable[..., Any]) -> Workflow[..., Any]:
        made = Workflow(function, name=name, durable_reads=durable_reads)
        register(made)
        if made.is_async:
            warn_of_limits(made.name, function)
        return made

    return decorate if function is None else decorate(function)


def parts_of_child(
    workflow: object,
) -> tuple[Workflow[..., Any], tuple[Any, ...], CheckedOptions | None] | None:
    """Returns a workflow of this program, its bound arguments and the options of its start; None for another
    object."""
    return workflow._child_parts() if isinstance(workflow, _LocalWorkflow) else None  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType, reportUnknownVariableType]


__all__ = ["BoundWorkflow", "ConfiguredWorkflow", "Workflow", "workflow"]
