"""Children that a workflow starts, to be awaited later or not at all."""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stepfast import _native
from stepfast._runtime.branch import current_branch
from stepfast._runtime.waiting import wait_for_call
from stepfast.errors import InvalidArgument

if TYPE_CHECKING:
    from stepfast._options.start_options import StartOptions
    from stepfast._runtime.host import Host
    from stepfast._workflow.workflow import Workflow

R = TypeVar("R", covariant=True)


class Reference:
    """What a workflow knows of a child that it has started."""

    __slots__ = ("_number", "_opened", "workflow_id")

    def __init__(self, opened: Host, number: int, workflow_id: str) -> None:
        self._opened, self._number = opened, number
        #: The child's workflow_id.
        self.workflow_id: str = workflow_id

    def _call(self) -> _native.Call:
        branch = current_branch()
        if branch is None:
            raise InvalidArgument(
                f"the result of child {self.workflow_id} is for the code of the workflow that started it; "
                "elsewhere use engine.get(workflow_id).result()"
            )
        return branch.child_result(self._opened.native, self._number, self.workflow_id)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.workflow_id!r})"

    def __rich_repr__(self) -> Iterator[Any]:
        yield self.workflow_id


class Child(Reference, Generic[R]):
    """A child that a sync workflow has started.

    Attributes:
        workflow_id: The child's workflow_id.
    """

    __slots__ = ()

    def result(self) -> R:
        """Waits for the child's output: a durable call, in the workflow that started it.

        Raises:
            WorkflowCancelled: The child was cancelled, but this workflow was not.
            InvalidArgument: This is not the code of a workflow.
            Exception: What the child has raised; `WorkflowFailed` where no code of Python has.
        """
        output: R = wait_for_call(self._call())
        return output


class AsyncChild(Reference, Generic[R]):
    """A child that an async workflow has started; awaiting it is awaiting its output.

    Attributes:
        workflow_id: The child's workflow_id.
    """

    __slots__ = ()

    def result(self) -> Coroutine[object, None, R]:
        """Waits for the child's output: a durable call, in the workflow that started it.

        Raises:
            WorkflowCancelled: The child was cancelled, but this workflow was not.
            InvalidArgument: This is not the code of a workflow.
            Exception: What the child has raised; `WorkflowFailed` where no code of Python has.
        """
        return self._call()

    def __await__(self) -> Generator[Any, Any, R]:
        return self.result().__await__()


def elsewhere(workflow: Workflow[..., Any]) -> InvalidArgument:
    """What is for the code of workflows is called elsewhere."""
    return InvalidArgument(
        f"workflow {workflow.name!r} is started as a child, but this is not the code of a workflow: use "
        "engine.start(...) here"
    )


def start_child(
    workflow: Workflow[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    is_detached: bool = False,
    order: StartOptions | None = None,
) -> Any:
    """Starts a child of the workflow whose code calls this. In async code it is to be awaited.

    Returns:
        A reference to it; only its workflow_id if it is detached.
    """
    branch = current_branch()
    if branch is None:
        raise elsewhere(workflow)
    opened: Host = branch.host
    number = opened.number(workflow)
    call = branch.start_child(opened.native, number, args, kwargs, is_detached, order)
    if branch.is_on_loop:
        return _started(call, opened, number, is_detached)
    key = wait_for_call(call)
    return key if is_detached else Child[Any](opened, number, key)


async def _started(call: _native.Call, opened: Host, number: int, is_detached: bool) -> Any:
    key = await call
    return key if is_detached else AsyncChild[Any](opened, number, key)


__all__ = ["AsyncChild", "Child"]
