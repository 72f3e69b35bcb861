"""Children: executions that the code of a workflow starts."""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Iterator
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from stepfast import _native
from stepfast._runtime.branch import current_branch
from stepfast._runtime.waiting import await_or_wait, wait_for_call
from stepfast.errors import InvalidArgument

if TYPE_CHECKING:
    from stepfast._options.start_options import CheckedOptions
    from stepfast._runtime.engine_interface import Host
    from stepfast._workflow.workflow import Workflow

R = TypeVar("R", covariant=True)

#: The options that no child can have. Each text gives the reason and the remedy.
_NOT_FOR_CHILDREN: Final = {
    "debounce": "cannot be debounced: leave it out, or start the execution in a step",
    "max_delay": "cannot be debounced: leave it out, or start the execution in a step",
    "wait_timeout": "waits for the database as long as its workflow does: leave it out",
    "on_full": "is never rejected by a full queue, and does not wait for capacity: leave it out",
}
#: The options that a child cannot have if its parent may await it, as in `_NOT_FOR_CHILDREN`.
_NOT_FOR_AWAITED: Final = {
    **_NOT_FOR_CHILDREN,
    "workflow_id": "is identified by its call: leave it out, or use start_detached(...)",
    "dedup_id": "cannot be replaced by another execution: leave it out, or use start_detached(...)",
}


class _ChildReference:
    """A reference to a child, for the workflow that has started it."""

    __slots__ = ("_host", "_number", "workflow_id")

    def __init__(self, host: Host, number: int, workflow_id: str) -> None:
        self._host, self._number = host, number
        #: The child's workflow_id.
        self.workflow_id: str = workflow_id

    def _result_call(self) -> _native.Call:
        branch = current_branch()
        if branch is None:
            raise InvalidArgument(
                f"the result of child {self.workflow_id} is for the code of the workflow that started it; "
                "elsewhere use engine.get(workflow_id).result()"
            )
        return branch.child_result(self._host.native, self._number, self.workflow_id)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.workflow_id!r})"

    def __rich_repr__(self) -> Iterator[Any]:
        yield self.workflow_id


class Child(_ChildReference, Generic[R]):
    """A child that a sync workflow has started.

    Attributes:
        workflow_id: The child's workflow_id.
    """

    __slots__ = ()

    def result(self) -> R:
        """Waits for the child's output. This is a durable call in the workflow that started the child.

        Raises:
            WorkflowCancelled: The child was cancelled, but this workflow was not.
            InvalidArgument: The caller is not the code of a workflow.
            Exception: The exception that the child has raised; `WorkflowFailed` if the child failed without
                an exception of Python.
        """
        output: R = wait_for_call(self._result_call())
        return output


class AsyncChild(_ChildReference, Generic[R]):
    """A child that an async workflow has started. Awaiting this object waits for the child's output.

    Attributes:
        workflow_id: The child's workflow_id.
    """

    __slots__ = ()

    def result(self) -> Coroutine[object, None, R]:
        """Waits for the child's output. This is a durable call in the workflow that started the child.

        Raises:
            WorkflowCancelled: The child was cancelled, but this workflow was not.
            InvalidArgument: The caller is not the code of a workflow.
            Exception: The exception that the child has raised; `WorkflowFailed` if the child failed without
                an exception of Python.
        """
        return self._result_call()

    def __await__(self) -> Generator[Any, Any, R]:
        return self.result().__await__()


def outside_workflow_error(workflow: Workflow[..., Any]) -> InvalidArgument:
    """Returns the error for code outside of workflows that starts a child."""
    return InvalidArgument(
        f"workflow {workflow.name!r} is started as a child, but the caller is not the code of a workflow: "
        "use engine.start(...) or engine.run(...) here"
    )


def call_child(
    workflow: Workflow[..., Any],
    branch: _native.Branch,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: CheckedOptions | None = None,
) -> Any:
    """Runs a workflow as a child of the workflow whose code calls it.

    Args:
        workflow: The workflow.
        branch: The branch whose code calls the workflow.
        args: The workflow's arguments by position.
        kwargs: The workflow's arguments by name.
        options: The options of the child's start; None for the defaults.

    Returns:
        In sync code the output, in async code an awaitable of the output.
    """
    if workflow.is_async and not branch.is_on_loop:
        raise InvalidArgument(
            f"workflow {workflow.name!r} is async, and the workflow that calls it is sync: make both async, "
            "or both sync"
        )
    if branch.is_on_loop and not workflow.is_async:
        raise InvalidArgument(
            f"workflow {workflow.name!r} is sync, and waiting for it would block the event loop of an async "
            f"one: make it async, or write await {workflow.__name__}.in_thread(...)"
        )
    return run_child(workflow, branch, args, kwargs, options)


def run_child(
    workflow: Workflow[..., Any],
    branch: _native.Branch,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: CheckedOptions | None,
    task: _native.StepSettings | None = None,
) -> Any:
    """Runs a workflow as a child, whether it is async or not. A sync workflow of async code runs in a thread.

    Args:
        workflow: The workflow.
        branch: The branch whose code runs the child.
        args: The workflow's arguments by position.
        kwargs: The workflow's arguments by name.
        options: The options of the child's start; None for the defaults.
        task: The settings of the task, if the child is a task of a graph: its place in the record is in them.

    Returns:
        In async code an awaitable of the output, in sync code the output.
    """
    host = branch.host
    number = host.number(workflow)
    native = None if options is None else _native_options(options)
    if branch.is_on_loop:
        return branch.child(host.native, number, args, kwargs, False, native, task)
    return host.threads.run_child(branch, number, args, kwargs, native, task)


def call_child_in_thread(
    workflow: Workflow[..., R],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: CheckedOptions | None = None,
) -> Coroutine[object, None, R]:
    """Runs a sync workflow as a child of the async workflow whose code calls it.

    Args:
        workflow: The workflow.
        args: The workflow's arguments by position.
        kwargs: The workflow's arguments by name.
        options: The options of the child's start; None for the defaults.

    Returns:
        An awaitable of the output.
    """
    branch = current_branch()
    if workflow.is_async or branch is None or not branch.is_on_loop:
        raise InvalidArgument(
            f"in_thread is for async workflows that call sync ones, and {workflow.name!r} is called elsewhere"
        )
    call: Coroutine[object, None, R] = run_child(workflow, branch, args, kwargs, options)
    return call


def start_child(
    workflow: Workflow[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    is_detached: bool = False,
    options: CheckedOptions | None = None,
) -> Any:
    """Starts a child of the workflow whose code calls this function.

    Args:
        workflow: The workflow.
        args: The workflow's arguments by position.
        kwargs: The workflow's arguments by name.
        is_detached: Whether the child is detached: it continues if the parent is cancelled, and the parent
            cannot await it.
        options: The options of the child's start; None for the defaults.

    Returns:
        A reference to the child; for a detached child its workflow_id. In async code an awaitable of either.
    """
    branch = current_branch()
    if branch is None:
        raise outside_workflow_error(workflow)
    host: Host = branch.host
    number = host.number(workflow)
    native = None if options is None else _native_options(options, is_detached=is_detached)
    call = branch.start_child(host.native, number, args, kwargs, is_detached, native)
    if branch.is_on_loop:
        return _start_and_wrap(call, host, number, is_detached)
    workflow_id = wait_for_call(call)
    return workflow_id if is_detached else Child[Any](host, number, workflow_id)


def continue_as_new(
    workflow: Workflow[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, has_options: bool
) -> Any:
    """Ends this part of the execution whose code calls this function, and begins the next one.

    Args:
        workflow: The workflow.
        args: The workflow's arguments by position.
        kwargs: The workflow's arguments by name.
        has_options: Whether the caller has given options, which an execution has from its start.

    Returns:
        In async code an awaitable. In sync code the function does not return.
    """
    branch = current_branch()
    if branch is None or branch.workflow != workflow.name:
        where = "outside of the code of a workflow" if branch is None else f"in workflow {branch.workflow!r}"
        raise InvalidArgument(
            f"{workflow.name!r} continues as new {where}: only its own code can; elsewhere start it as an "
            "execution of its own"
        )
    if has_options:
        raise InvalidArgument(
            "an execution keeps the options of its start: leave them out to continue as new"
        )
    host: Host = branch.host
    call = _native.continue_as_new(branch, host.native, host.number(workflow), args, kwargs)
    return await_or_wait(branch, call)


async def _start_and_wrap(call: _native.Call, host: Host, number: int, is_detached: bool) -> Any:
    workflow_id = await call
    return workflow_id if is_detached else AsyncChild[Any](host, number, workflow_id)


def _native_options(options: CheckedOptions, *, is_detached: bool = False) -> _native.StartOptions:
    if is_detached:
        options.refuse(_NOT_FOR_CHILDREN, "a child")
    else:
        options.refuse(_NOT_FOR_AWAITED, "a child that its workflow may await")
    return options.native


__all__ = ["AsyncChild", "Child"]
