"""Batches that the code of a workflow submits. Each is a child, which ends when all its items have ended."""

from __future__ import annotations

from collections.abc import AsyncIterable, Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from stepfast._options.batch_options import check_batch_options
from stepfast._runtime.branch import current_branch
from stepfast._runtime.waiting import wait_for_call
from stepfast._validation.text import short_repr
from stepfast._workflow.batch.counts import BatchCounts
from stepfast._workflow.batch.inputs import check_index, not_a_tuple_error, with_index
from stepfast._workflow.batch.item_result import ItemResult
from stepfast.errors import InvalidArgument

if TYPE_CHECKING:
    from stepfast import _native
    from stepfast._options.start_options import CheckedOptions
    from stepfast._runtime.engine_interface import Host
    from stepfast._workflow.workflow import Workflow

R = TypeVar("R", covariant=True)


class _BatchReference:
    """A reference to a batch, for the workflow that has submitted it."""

    __slots__ = ("_host", "_number", "batch_id")

    def __init__(self, host: Host, number: int, batch_id: str) -> None:
        self._host, self._number = host, number
        #: The id of the batch.
        self.batch_id: str = batch_id

    def item_id(self, index: int) -> str:
        """Returns the workflow_id of an item, by which `engine.show` finds its record.

        Args:
            index: The index of the item in its batch, from 0.

        Raises:
            InvalidArgument: The value cannot be an index.
        """
        return f"{self.batch_id}#{check_index(index)}"

    def _branch(self) -> _native.Branch:
        branch = current_branch()
        if branch is None:
            raise InvalidArgument(
                f"batch {self.batch_id} is awaited by the code of the workflow that has submitted it; "
                "elsewhere use engine.get_batch(batch_id)"
            )
        return branch

    def _counts_call(self) -> _native.Call:
        return self._branch().batch_counts(self._host.native, self._number, self.batch_id)

    def _results_call(self) -> _native.Call:
        return self._branch().batch_results(self._host.native, self._number, self.batch_id)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.batch_id!r})"

    def __rich_repr__(self) -> Iterator[Any]:
        yield self.batch_id


class ChildBatch(_BatchReference, Generic[R]):
    """A batch that a sync workflow has submitted, with items whose outputs have the type `R`.

    Attributes:
        batch_id: The id of the batch, by which `engine.get_batch` finds it.
    """

    __slots__ = ()

    def wait(self) -> BatchCounts:
        """Waits until all items have ended, and returns their numbers by state. This is a durable call in the
        workflow that has submitted the batch. Failed items do not fail the call. A replay counts again.

        Raises:
            WorkflowCancelled: The batch was cancelled, but this workflow was not.
            InvalidArgument: The caller is not the code of a workflow.
        """
        return BatchCounts(*wait_for_call(self._counts_call()))

    def results(self) -> list[ItemResult[R]]:
        """Waits until all items have ended, and returns their results in the order of the inputs. This is a
        durable call in the workflow that has submitted the batch. The record of the workflow does not
        contain the results: a replay reads them again from the records of the items.

        Raises:
            WorkflowCancelled: The batch was cancelled, but this workflow was not.
            InvalidArgument: The caller is not the code of a workflow.
        """
        return _results(wait_for_call(self._results_call()))


class AsyncChildBatch(_BatchReference, Generic[R]):
    """A batch that an async workflow has submitted, with items whose outputs have the type `R`.

    Attributes:
        batch_id: The id of the batch, by which `engine.get_batch` finds it.
    """

    __slots__ = ()

    async def wait(self) -> BatchCounts:
        """Waits until all items have ended, and returns their numbers by state. This is a durable call in the
        workflow that has submitted the batch. Failed items do not fail the call. A replay counts again.

        Raises:
            WorkflowCancelled: The batch was cancelled, but this workflow was not.
            InvalidArgument: The caller is not the code of a workflow.
        """
        return BatchCounts(*await self._counts_call())

    async def results(self) -> list[ItemResult[R]]:
        """Waits until all items have ended, and returns their results in the order of the inputs. This is a
        durable call in the workflow that has submitted the batch. The record of the workflow does not
        contain the results: a replay reads them again from the records of the items.

        Raises:
            WorkflowCancelled: The batch was cancelled, but this workflow was not.
            InvalidArgument: The caller is not the code of a workflow.
        """
        return _results(await self._results_call())


def _results(items: list[tuple[int, bool, Any]]) -> list[ItemResult[Any]]:
    return [ItemResult(*item) for item in items]


def submit_child_batch(
    workflow: Workflow[..., Any],
    bound_args: tuple[Any, ...],
    configured: CheckedOptions | None,
    inputs: object,
    options: Mapping[str, Any],
) -> Any:
    """Submits a batch of the workflow whose code calls this function.

    Args:
        workflow: The workflow of the items.
        bound_args: The first arguments of each item.
        configured: The options of the workflow; None without options.
        inputs: The arguments of the items by position: an iterable of tuples.
        options: The options of the batch; see `ChildBatchOptions`.

    Returns:
        A reference to the batch; in async code an awaitable of it.
    """
    branch = current_branch()
    if branch is None:
        raise InvalidArgument(
            f"a batch of workflow {workflow.name!r} is submitted as a child, but the caller is not the code "
            "of a workflow: use engine.submit_batch(...) here"
        )
    if options.get("batch_id") is not None:
        raise InvalidArgument(
            f"batch_id is {short_repr(options['batch_id'])}, and a batch that a workflow submits is "
            "identified by its call: leave it out, or submit the batch in a step"
        )
    checked = check_batch_options(options, configured)
    if isinstance(inputs, AsyncIterable) and not isinstance(inputs, Iterable):
        raise InvalidArgument(
            f"{short_repr(cast('object', inputs))} is an async iterable, which a replay cannot repeat: read "
            "it in a step, or submit the batch in a step"
        )
    items: list[tuple[Any, ...]] = []
    for item in cast("Iterable[Any]", inputs):
        if item.__class__ is not tuple:
            raise not_a_tuple_error(item, len(items), f"{workflow.__name__}.submit_batch([(1,), (2,)])")
        items.append((*bound_args, *item))
    host: Host = branch.host
    number = host.number(workflow)
    native = None if checked is None else checked.native
    submitted, refused = branch.submit_batch(host.native, number, items, native)
    if refused is not None:
        raise with_index(*refused)
    call = cast("_native.Call", submitted)
    if branch.is_on_loop:
        return _await_submission(call, host, number)
    return ChildBatch[Any](host, number, wait_for_call(call))


async def _await_submission(call: Coroutine[Any, Any, str], host: Host, number: int) -> AsyncChildBatch[Any]:
    return AsyncChildBatch[Any](host, number, await call)


__all__ = ["AsyncChildBatch", "ChildBatch", "submit_child_batch"]
