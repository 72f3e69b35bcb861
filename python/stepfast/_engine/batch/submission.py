"""Submits batches: reads their inputs, and hands them over to the native engine in portions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from stepfast import _native
from stepfast._options.batch_options import check_batch_options
from stepfast._runtime.branch import forbid_in_workflow
from stepfast._runtime.waiting import wait_for_call
from stepfast._validation.text import short_repr
from stepfast._workflow.batch.inputs import not_a_tuple_error, with_index
from stepfast._workflow.start_target import start_target
from stepfast.errors import InvalidArgument

if TYPE_CHECKING:
    from stepfast._engine.open_engine import OpenEngine

#: The number of inputs that are handed over first. Their size determines the number of the next ones.
FIRST_PORTION_ITEMS: Final = 16
#: The largest number of inputs that are handed over at a time.
MAX_PORTION_ITEMS: Final = 1_000
#: The size of the inputs that are handed over at a time, in bytes, unless one input is larger.
PORTION_BYTES: Final = 1 << 20


class BatchSubmission:
    """A batch while its inputs are read.

    Args:
        open_engine: The engine or client.
        workflow: The workflow, as the caller has given it.
        options: The options of the batch; see `BatchOptions`.

    Raises:
        InvalidArgument: The engine cannot start the workflow, an option is out of its bounds, or the caller
            is the code of a workflow.
    """

    def __init__(self, open_engine: OpenEngine, workflow: Any, options: Mapping[str, Any]) -> None:
        forbid_in_workflow("engine.submit_batch")
        found, self._bound_args, configured = start_target(workflow)
        number = open_engine.number(found)
        checked = check_batch_options(options, configured)
        self._workflow = workflow
        self._port = open_engine.port
        self._native = open_engine.native.submit_batch(number, None if checked is None else checked.native)
        self._portion: list[tuple[Any, ...]] = []
        self._portion_items = FIRST_PORTION_ITEMS
        self._count = 0

    def add(self, item: Any) -> bool:
        """Adds an item to the portion. Returns whether the portion is full."""
        if item.__class__ is not tuple:
            example = f"submit_batch({short_repr(self._workflow)}, [(1,), (2,)])"
            raise not_a_tuple_error(item, self._count, example)
        self._count += 1
        self._portion.append((*self._bound_args, *item) if self._bound_args else item)
        return len(self._portion) >= self._portion_items

    def push(self) -> tuple[_native.Call, Exception | None]:
        """Hands over the portion. The returned call ends when the next portion may follow. The exception is
        that of an item that cannot be encoded, to be raised afterwards."""
        portion, self._portion = self._portion, []
        call, size, refused = self._native.push(portion, self._port)
        if size:
            fitting = PORTION_BYTES * len(portion) // size
            self._portion_items = min(max(fitting, 1), MAX_PORTION_ITEMS)
        return call, None if refused is None else with_index(*refused)

    def finish(self) -> _native.Call:
        """Ends the inputs. The returned call ends with a native handle when all items are durable."""
        return self._native.finish(self._port)

    def abort(self) -> _native.Call:
        """Leaves the batch open. The returned call ends when the items that were handed over are durable."""
        return self._native.abort(self._port)

    def close(self) -> None:
        """Leaves the batch open, and does not wait for items to become durable."""
        self._native.close()


def submit_batch(
    open_engine: OpenEngine, workflow: Any, inputs: Any, options: Mapping[str, Any]
) -> _native.BatchHandle:
    """Submits a batch, and returns when all items are durable."""
    if isinstance(inputs, AsyncIterable) and not isinstance(inputs, Iterable):
        raise InvalidArgument(
            f"{short_repr(cast('object', inputs))} is an async iterable, which needs an event loop: use an "
            "AsyncEngine or an AsyncClient"
        )
    iterator = iter(cast("Iterable[Any]", inputs))
    submission = BatchSubmission(open_engine, workflow, options)

    def push() -> None:
        call, error = submission.push()
        wait_for_call(call)
        if error is not None:
            raise error

    try:
        for item in iterator:
            if submission.add(item):
                push()
        push()
    except Exception:
        # the items that were read before become durable
        with contextlib.suppress(Exception):
            push()
        with contextlib.suppress(Exception):
            wait_for_call(submission.abort())
        raise
    except BaseException:
        submission.close()
        raise
    handle: _native.BatchHandle = wait_for_call(submission.finish())
    return handle


async def submit_batch_async(
    open_engine: OpenEngine, workflow: Any, inputs: Any, options: Mapping[str, Any]
) -> _native.BatchHandle:
    """Submits a batch, and returns when all items are durable."""
    is_async = isinstance(inputs, AsyncIterable)
    iterator: Any = aiter(cast("AsyncIterable[Any]", inputs)) if is_async else iter(inputs)
    submission = BatchSubmission(open_engine, workflow, options)

    async def push() -> None:
        call, error = submission.push()
        await call
        if error is not None:
            raise error
        # the call may end at once, and the loop has other tasks
        await asyncio.sleep(0)

    try:
        if is_async:
            async for item in iterator:
                if submission.add(item):
                    await push()
        else:
            for item in iterator:
                if submission.add(item):
                    await push()
        await push()
    except Exception:
        # the items that were read before become durable
        with contextlib.suppress(Exception):
            await push()
        with contextlib.suppress(Exception):
            await submission.abort()
        raise
    except BaseException:
        submission.close()
        raise
    handle: _native.BatchHandle = await submission.finish()
    return handle


__all__ = ["submit_batch", "submit_batch_async"]
