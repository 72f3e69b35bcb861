"""Batches that the code of workflows submits, and maps of workflows over many items."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import pytest
from watched_process import HANG_TIMEOUT

import stepfast
from stepfast import (
    AsyncChildBatch,
    AsyncEngine,
    BatchCounts,
    ChildBatch,
    Engine,
    InvalidArgument,
    Queue,
    WorkflowCancelled,
    current,
    sleep,
    step,
    workflow,
)


class OddSquare(Exception):
    pass


@workflow
def squares_item(n: int) -> int:
    if n % 1_000 == 999:
        raise OddSquare(n)
    return n * n


@workflow
async def squares_item_async(n: int) -> int:
    if n % 1_000 == 999:
        raise OddSquare(n)
    return n * n


@workflow
def submits_squares(count: int) -> tuple[str, BatchCounts, list[int]]:
    batch: ChildBatch[int] = squares_item.submit_batch(
        [(n,) for n in range(count)], attributes={"of": "test"}
    )
    counts = batch.wait()
    outputs = [item.result() for item in batch.results() if item.exception() is None]
    return batch.batch_id, counts, outputs


@workflow
async def submits_squares_async(count: int) -> tuple[str, BatchCounts, list[int]]:
    batch: AsyncChildBatch[int] = await squares_item_async.submit_batch((n,) for n in range(count))
    counts = await batch.wait()
    outputs = [item.result() for item in await batch.results() if item.exception() is None]
    return batch.batch_id, counts, outputs


def test_workflow_submits_batch_and_waits(url: str) -> None:
    with Engine(url) as engine:
        handle = engine.start(submits_squares, 1_500)
        batch_id, counts, outputs = handle.result()
        assert counts == BatchCounts(1_500, 0, 0, 0, 1_499, 1, 0)
        assert outputs == [n * n for n in range(1_500) if n != 999]
        assert engine.get_batch(batch_id, squares_item).counts() == counts
        assert [it.workflow_id for it in engine.list(attributes={"of": "test"})] == [batch_id]
        assert engine.show(batch_id).execution.parent == handle.workflow_id


def test_async_workflow_submits_batch_and_waits(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            _, counts, outputs = await engine.run(submits_squares_async, 1_500)
            assert counts == BatchCounts(1_500, 0, 0, 0, 1_499, 1, 0)
            assert outputs == [n * n for n in range(1_500) if n != 999]

    asyncio.run(main())


runs: list[int] = []


@step
def reads_numbers() -> list[int]:
    runs.append(1)
    return [len(runs), 2, 3]


@workflow
def sleeps_after_batch() -> list[int]:
    numbers = reads_numbers()
    batch = squares_item.submit_batch((n,) for n in numbers)
    outputs = [item.result() for item in batch.results()]
    sleep(0.3)
    return outputs + [item.result() for item in batch.results()]


def test_replay_continues_with_the_same_batch(url: str) -> None:
    runs.clear()
    with Engine(url, suspend_after=0.01) as engine:
        assert engine.run(sleeps_after_batch) == [1, 4, 9, 1, 4, 9]
        assert len([it for it in engine.list() if it.workflow == "squares_item"]) == 1


begun_items = threading.Semaphore(0)


@step
def report_begin() -> None:
    begun_items.release()


@workflow
def waits_in_item(n: int) -> int:
    report_begin()
    sleep(3600)
    return n


@workflow
def submits_waiting_items() -> str:
    batch = waits_in_item.submit_batch([(1,), (2,)])
    try:
        batch.wait()
    except WorkflowCancelled:
        return "cancelled"
    return "ended"


def batch_of(engine: Engine, workflow: str) -> str:
    """Waits until both items of the only batch of this workflow begin, and returns the id of the batch."""
    for _ in range(2):
        assert begun_items.acquire(timeout=HANG_TIMEOUT)
    (batch,) = {it.workflow_id.partition("#")[0] for it in engine.list(workflow=workflow)}
    return batch


def test_cancelled_batch_raises_in_its_workflow(sqlite_url: str) -> None:
    with Engine(sqlite_url) as engine:
        handle = engine.start(submits_waiting_items)
        batch = engine.get_batch(batch_of(engine, "waits_in_item"))
        assert batch.cancel()
        assert handle.result() == "cancelled"


def test_cancel_of_workflow_cancels_its_batch(sqlite_url: str) -> None:
    with Engine(sqlite_url) as engine:
        handle = engine.start(submits_waiting_items)
        batch = engine.get_batch(batch_of(engine, "waits_in_item"))
        assert handle.cancel()
        assert batch.wait().cancelled == 2


@dataclass
class Scale:
    factor: int

    @workflow
    def scaled(self, n: int) -> int:
        return self.factor * n


@workflow
def makes_wrong_batches() -> list[str]:
    messages = []
    wrong: list[Any] = [
        lambda: squares_item.submit_batch([(1,), 2]),  # type: ignore[list-item]
        lambda: squares_item.submit_batch([(1,), (object(),)]),
        lambda: squares_item.submit_batch([(1, 2)]),
        lambda: squares_item.submit_batch([(1,)], batch_id="b"),  # type: ignore[call-overload]
        lambda: squares_item.submit_batch([(1,)], queue="missing"),
        lambda: squares_item.submit_batch([(1,)], key="k"),
        lambda: squares_item.options(execution_timeout=1).submit_batch([(1,)]),
        lambda: squares_item.submit_batch([(1,)], colour="red"),  # type: ignore[call-overload]
    ]
    for call in wrong:
        try:
            call()
        except (InvalidArgument, TypeError, stepfast.EncodeError, stepfast.NotFound) as error:
            messages.append(str(error))
    return messages


def test_wrong_batches_are_refused(sqlite_url: str) -> None:
    parts = [
        "item 1 of the batch is 2, and must be a tuple",
        "item 1 of the batch",
        "item 0 of the batch",
        "identified by its call",
        "missing",
        "key",
        "execution_timeout",
        "'colour' is not an option of batches",
    ]
    with Engine(sqlite_url) as engine:
        messages = engine.run(makes_wrong_batches)
        assert len(messages) == len(parts)
        for message, part in zip(messages, parts, strict=True):
            assert part in message
    with pytest.raises(InvalidArgument, match=r"use engine.submit_batch\(...\) here"):
        squares_item.submit_batch([(1,)])


@workflow
def submits_bound_items() -> list[int]:
    batch = Scale(3).scaled.submit_batch([(n,) for n in range(3)])
    assert batch.item_id(1) == f"{batch.batch_id}#1"
    return [item.result() for item in batch.results()]


@workflow
def returns_own_id(n: int) -> str:
    return current().workflow_id


@workflow
def maps_many(count: int) -> list[str]:
    return stepfast.map(returns_own_id.options(queue="q"), range(count))


@workflow
async def maps_items_async(count: int) -> list[int]:
    return await stepfast.map(squares_item_async, range(count))


def test_items_are_bound_to_an_object(sqlite_url: str) -> None:
    with Engine(sqlite_url) as engine:
        assert engine.run(submits_bound_items) == [0, 3, 6]


def test_map_of_many_calls_is_a_batch(url: str) -> None:
    with Engine(url, queues=[Queue("q")]) as engine:
        few = engine.run(maps_many, 20)
        assert sorted(few) == sorted(it.workflow_id for it in engine.list(workflow="returns_own_id"))
        many = engine.run(maps_many, 1_000)
        batch = many[0].partition("#")[0]
        assert many == [f"{batch}#{index}" for index in range(1_000)]
        assert engine.get_batch(batch).counts().completed == 1_000


def test_failed_item_fails_async_map(sqlite_url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(sqlite_url) as engine:
            assert await engine.run(maps_items_async, 999) == [n * n for n in range(999)]
            with pytest.raises(OddSquare, match="999"):
                await engine.run(maps_items_async, 2_500)

    asyncio.run(main())
