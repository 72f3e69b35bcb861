"""Handles of batches: references to batches."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stepfast import _native
from stepfast._engine.status import Status
from stepfast._runtime.branch import PENDING, forbid_in_workflow
from stepfast._runtime.waiting import result_timeout, wait_for_call
from stepfast._validation.durations import Duration, to_timeout
from stepfast._workflow.batch.counts import BatchCounts
from stepfast._workflow.batch.inputs import check_index
from stepfast._workflow.batch.item_result import ItemResult

if TYPE_CHECKING:
    from stepfast._engine.batch.progress import BatchProgress
    from stepfast._engine.open_engine import OpenEngine

R = TypeVar("R", covariant=True)


class BatchHandle(Generic[R]):
    """A reference to a batch whose items have outputs of type `R`."""

    __slots__ = ("_native", "_open_engine")

    def __init__(self, native: _native.BatchHandle, open_engine: OpenEngine) -> None:
        # the reference to the engine keeps it alive while code may wait for results
        self._native, self._open_engine = native, open_engine

    @property
    def batch_id(self) -> str:
        """The id of the batch, given or generated."""
        return self._native.batch_id

    def item_id(self, index: int) -> str:
        """Returns the workflow_id of an item, by which `engine.show` finds its record.

        Args:
            index: The index of the item in its batch, from 0.

        Raises:
            InvalidArgument: The value cannot be an index.
        """
        return self._native.item_id(check_index(index))

    def status(self) -> Status:
        """Returns the status of the batch, from the database: `waiting` until all items have ended, then
        `completed`, also if items have failed; or `cancelled`."""
        forbid_in_workflow("batch.status")
        return Status(wait_for_call(self._native.status(None)))

    def counts(self) -> BatchCounts:
        """Returns the numbers of items by state, from the database."""
        forbid_in_workflow("batch.counts")
        return BatchCounts(*wait_for_call(self._native.counts(None)))

    def wait(self, timeout: Duration | None = None, *, progress: bool = False) -> BatchCounts:
        """Waits until all items of the batch have ended. Failed items do not fail the batch. A batch whose
        submission was interrupted does not end before it is submitted again, or cancelled.

        Args:
            timeout: The longest time to wait, as seconds or as a `timedelta`; no limit by default. The items
                continue after a timeout.
            progress: Whether to show the progress on the standard error: as a bar in a terminal or a
                notebook, and elsewhere as a line every 10 s. False by default.

        Returns:
            The numbers of items by state.

        Raises:
            ResultTimeout: The batch has not ended in time.
            WorkflowParked: A retried item is parked, and continues when it is resumed. While an item of an
                unfinished batch is parked, the call waits.
            EngineClosed: The engine was closed during the wait.
            InvalidArgument: The timeout is neither a number nor a `timedelta`, or negative.
        """
        limit = to_timeout("timeout", timeout)
        forbid_in_workflow("batch.wait")
        call = self._native.wait(None)
        if not progress:
            return BatchCounts(*wait_for_call(call, limit, self))
        deadline = math.inf if limit is None else time.monotonic() + limit
        with new_progress(self.batch_id) as shown:
            while call.wait(min(shown.period, max(0.0, deadline - time.monotonic()))) == PENDING:
                if time.monotonic() >= deadline:
                    raise result_timeout(self, limit)
                with shown.timed():
                    counts = self.counts()
                shown.show(counts)
            ended = BatchCounts(*wait_for_call(call))
            shown.show(ended, is_last=True)
            return ended

    def results(self) -> Iterator[ItemResult[R]]:
        """Returns the results of all items in the order of their indexes, each as soon as the items around it
        have ended. The iterator waits for the next result, and ends after the last item of the batch. It
        reads the results in pages, so memory stays bounded.

        Raises:
            WorkflowParked: A bundle is parked, and continues when it is resumed. Raised by the iterator. For
                a single item that is parked, the iterator yields a result with this exception.
            EngineClosed: The engine was closed during the wait. Raised by the iterator.
        """
        return self._read_results(False, "batch.results")

    def failures(self) -> Iterator[ItemResult[R]]:
        """Returns the results of the items that failed, in the order of their indexes. In all other respects
        like `results`."""
        return self._read_results(True, "batch.failures")

    def _read_results(self, has_only_failures: bool, what: str) -> Iterator[ItemResult[R]]:
        forbid_in_workflow(what)
        reader = self._native.results(has_only_failures)
        while page := wait_for_call(reader.next_page(None)):
            for item in page:
                yield ItemResult(*item)

    def retry_failed(self) -> int:
        """Retries the failed items. Each continues as `resume` continues an execution: its failed steps are
        tried again, and its other steps keep their outcomes.

        The status of the batch stays as it is. `wait` waits for the retried items. If the call raises an
        exception, some items may be retried; call it again.

        Returns:
            The number of retried items.

        Raises:
            StoreUnavailable: The database is unreachable.
            EngineClosed: The engine is closed.
        """
        forbid_in_workflow("batch.retry_failed")
        retried: int = wait_for_call(self._native.retry_failed(None))
        return retried

    def cancel(self) -> bool:
        """Requests the cancellation of the batch: all items that have not ended end as `cancelled`.

        The request is durable when the call returns. A cancelled batch takes no further items. Once the batch
        has ended, the call cancels the items that are being retried, and the status of the batch stays.

        Returns:
            False if the batch had ended before, and no item is being retried.
        """
        forbid_in_workflow("batch.cancel")
        is_done: bool = wait_for_call(self._native.cancel(None))
        return is_done

    def __repr__(self) -> str:
        return f"BatchHandle({self.batch_id!r})"

    def __rich_repr__(self) -> Iterator[Any]:
        yield self.batch_id


class AsyncBatchHandle(Generic[R]):
    """A reference to a batch whose items have outputs of type `R`, for programs with an event loop. See
    `BatchHandle`."""

    __slots__ = ("_native", "_open_engine")

    def __init__(self, native: _native.BatchHandle, open_engine: OpenEngine) -> None:
        # the reference to the engine keeps it alive while code may wait for results
        self._native, self._open_engine = native, open_engine

    @property
    def _port(self) -> _native.Port:
        loop = self._open_engine.loop
        assert loop is not None
        loop.check("the handle")
        return loop.native

    @property
    def batch_id(self) -> str:
        """The id of the batch, given or generated."""
        return self._native.batch_id

    def item_id(self, index: int) -> str:
        """Returns the workflow_id of an item. See `BatchHandle.item_id`.

        Args:
            index: The index of the item in its batch, from 0.

        Raises:
            InvalidArgument: The value cannot be an index.
        """
        return self._native.item_id(check_index(index))

    async def status(self) -> Status:
        """Returns the status of the batch, from the database. See `BatchHandle.status`."""
        forbid_in_workflow("batch.status")
        return Status(await self._native.status(self._port))

    async def counts(self) -> BatchCounts:
        """Returns the numbers of items by state, from the database."""
        forbid_in_workflow("batch.counts")
        return BatchCounts(*await self._native.counts(self._port))

    async def wait(self, *, progress: bool = False) -> BatchCounts:
        """Waits until all items of the batch have ended, and returns the numbers of items by state. For a
        limit in time, use `asyncio.timeout`. See `BatchHandle.wait`.

        Args:
            progress: Whether to show the progress on the standard error. False by default.
        """
        forbid_in_workflow("batch.wait")
        call = self._native.wait(self._port)
        if not progress:
            return BatchCounts(*await call)
        with new_progress(self.batch_id) as shown:
            waiting = asyncio.ensure_future(call)
            try:
                while not (await asyncio.wait((waiting,), timeout=shown.period))[0]:
                    with shown.timed():
                        counts = await self.counts()
                    shown.show(counts)
            finally:
                waiting.cancel()
            ended = BatchCounts(*waiting.result())
            shown.show(ended, is_last=True)
            return ended

    def results(self) -> AsyncIterator[ItemResult[R]]:
        """Returns the results of all items in the order of their indexes, for `async for`. See
        `BatchHandle.results`."""
        return self._read_results(False, "batch.results")

    def failures(self) -> AsyncIterator[ItemResult[R]]:
        """Returns the results of the items that failed, in the order of their indexes, for `async for`. See
        `BatchHandle.failures`."""
        return self._read_results(True, "batch.failures")

    async def _read_results(self, has_only_failures: bool, what: str) -> AsyncIterator[ItemResult[R]]:
        forbid_in_workflow(what)
        reader = self._native.results(has_only_failures)
        while page := await reader.next_page(self._port):
            for item in page:
                yield ItemResult(*item)

    async def retry_failed(self) -> int:
        """Retries the failed items, and returns their number. See `BatchHandle.retry_failed`."""
        forbid_in_workflow("batch.retry_failed")
        retried: int = await self._native.retry_failed(self._port)
        return retried

    async def cancel(self) -> bool:
        """Requests the cancellation of the batch. See `BatchHandle.cancel`."""
        forbid_in_workflow("batch.cancel")
        is_done: bool = await self._native.cancel(self._port)
        return is_done

    def __repr__(self) -> str:
        return f"AsyncBatchHandle({self.batch_id!r})"

    def __rich_repr__(self) -> Iterator[Any]:
        yield self.batch_id


def new_progress(batch_id: str) -> BatchProgress:
    """Returns the progress of a batch. Most programs need neither its module nor rich."""
    from stepfast._engine.batch.progress import BatchProgress

    return BatchProgress(batch_id)


__all__ = ["AsyncBatchHandle", "BatchHandle"]
