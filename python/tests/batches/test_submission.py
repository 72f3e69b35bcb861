"""Submissions of batches: their inputs, interrupted and repeated submissions, options, and memory."""

from __future__ import annotations

import asyncio
import pathlib
import tracemalloc
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from stepfast import (
    AsyncClient,
    AsyncEngine,
    BatchCounts,
    BatchHandle,
    Client,
    EncodeError,
    Engine,
    InvalidArgument,
    NotFound,
    Queue,
    RemoteWorkflow,
    WorkflowIdConflict,
    step,
    workflow,
)


@workflow
def add_in_batch(n: int, other: int = 1) -> int:
    return n + other


@workflow
async def add_in_batch_async(n: int, other: int = 1) -> int:
    return n + other


@workflow
def describe_in_batch(value: Any) -> str:
    return str(value)


@dataclass
class BatchMultiplier:
    factor: int

    @workflow
    def multiply(self, n: int) -> int:
        return self.factor * n


def numbers(count: int) -> Iterator[tuple[int]]:
    return ((n,) for n in range(count))


def numbers_until_error(count: int, error: BaseException) -> Iterator[tuple[int]]:
    yield from numbers(count)
    raise error


async def async_numbers(count: int) -> AsyncIterator[tuple[int]]:
    for n in range(count):
        yield (n,)


def outputs(batch: BatchHandle[Any]) -> list[Any]:
    results = list(batch.results())
    assert [item.index for item in results] == list(range(len(results)))
    return [item.result() for item in results]


def all_completed(count: int) -> BatchCounts:
    return BatchCounts(count, 0, 0, 0, count, 0, 0)


def test_batch_of_any_iterable_runs_and_returns_results(url: str) -> None:
    with Engine(url) as engine:
        for count, inputs in [(2_500, numbers(2_500)), (3, [(0,), (1,), (2,)]), (0, []), (1, {(0, 1)})]:
            batch = engine.submit_batch(add_in_batch, inputs)
            assert batch.wait() == all_completed(count)
            assert batch.wait().ended == count
            assert batch.status() == "completed"
            assert outputs(batch) == [n + 1 for n in range(count)]
            assert list(batch.failures()) == []
        assert engine.count() == 4


def test_async_engine_takes_iterables_and_async_iterables(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            inputs: Iterable[tuple[Any, ...]] | AsyncIterator[tuple[Any, ...]]
            for name, inputs in {
                "a": numbers(2_500),
                "b": async_numbers(2_500),
                "c": async_numbers(0),
            }.items():
                batch = await engine.submit_batch(add_in_batch_async, inputs, batch_id=name)
                counts = await batch.wait()
                assert counts == all_completed(0 if name == "c" else 2_500)
                found = [(item.index, item.result()) async for item in batch.results()]
                assert found == [(n, n + 1) for n in range(counts.submitted)]
                assert [item async for item in batch.failures()] == []
                assert await batch.status() == "completed"
                assert await batch.counts() == counts
                assert await batch.cancel() is False
                again = await engine.get_batch(name, add_in_batch_async)
                assert (again.batch_id, again.item_id(7)) == (name, f"{name}#7")

    asyncio.run(main())


def test_batch_takes_every_startable(sqlite_url: str) -> None:
    with Engine(sqlite_url) as engine:
        assert outputs(engine.submit_batch(BatchMultiplier(2).multiply, numbers(3))) == [0, 2, 4]
        configured = BatchMultiplier(3).multiply.options(attributes={"kind": "old", "team": "a"})
        batch = engine.submit_batch(configured, numbers(3), attributes={"kind": "new"}, batch_id="b")
        assert outputs(batch) == [0, 3, 6]
        assert engine.show("b").execution.attributes == {"kind": "new"}
        assert outputs(engine.submit_batch(RemoteWorkflow[[int], int]("add_in_batch"), numbers(2))) == [1, 2]


def test_client_submits_batch_for_engine(url: str) -> None:
    with Client(url) as client:
        batch = client.submit_batch(add_in_batch, numbers(1_500), batch_id="b")
        assert batch.counts() == BatchCounts(1_500, 1_500, 0, 0, 0, 0, 0)
        assert batch.status() == "waiting"
        with Engine(url) as engine:
            assert outputs(client.get_batch("b", add_in_batch)) == [n + 1 for n in range(1_500)]
            assert engine.get_batch("b").wait() == all_completed(1_500)

    async def main() -> None:
        async with AsyncClient(url) as client:
            batch = await client.submit_batch(add_in_batch_async, async_numbers(10), batch_id="async")
            async with AsyncEngine(url):
                assert await batch.wait() == all_completed(10)

    asyncio.run(main())


def test_iterable_that_raises_leaves_batch_to_continue(url: str) -> None:
    class OwnError(Exception):
        pass

    error = OwnError("no more rows")
    with Engine(url) as engine:
        with pytest.raises(OwnError) as caught:
            engine.submit_batch(add_in_batch, numbers_until_error(2_300, error), batch_id="b")
        assert caught.value is error
        batch = engine.get_batch("b", add_in_batch)
        # whole bundles of 1,000 items are durable
        assert batch.counts().submitted == 2_000
        assert batch.status() == "waiting"
        for _ in range(2):
            again = engine.submit_batch(add_in_batch, numbers(2_600), batch_id="b")
            assert again.wait() == all_completed(2_600)
        assert outputs(batch) == [n + 1 for n in range(2_600)]


def test_async_iterable_that_raises_leaves_batch_to_continue(url: str) -> None:
    async def inputs(error: BaseException) -> AsyncIterator[tuple[int]]:
        async for item in async_numbers(1_200):
            yield item
        raise error

    async def main() -> None:
        async with AsyncEngine(url) as engine:
            for error in (ValueError("ended"), asyncio.CancelledError()):
                with pytest.raises(type(error)) as caught:
                    await engine.submit_batch(add_in_batch_async, inputs(error), batch_id="b")
                assert caught.value is error
            again = await engine.submit_batch(add_in_batch_async, async_numbers(1_300), batch_id="b")
            assert await again.wait() == all_completed(1_300)

    asyncio.run(main())


def test_interrupt_leaves_batch_to_continue(sqlite_url: str) -> None:
    with Engine(sqlite_url) as engine:
        with pytest.raises(KeyboardInterrupt):
            engine.submit_batch(add_in_batch, numbers_until_error(1_200, KeyboardInterrupt()), batch_id="b")
        assert engine.submit_batch(add_in_batch, numbers(1_200), batch_id="b").wait() == all_completed(1_200)


@pytest.mark.parametrize("index", [0, 999, 1_000, 1_234])
def test_input_that_cannot_be_encoded_is_named(sqlite_url: str, index: int) -> None:
    def inputs() -> Iterator[tuple[Any]]:
        yield from numbers(index)
        yield (object(),)
        yield from numbers(5_000)

    with Engine(sqlite_url) as engine:
        with pytest.raises(EncodeError, match=rf"^item {index} of the batch: argument 1") as caught:
            engine.submit_batch(describe_in_batch, inputs(), batch_id="b")
        assert caught.value.code == "SF-0030"
        assert engine.get_batch("b").counts().submitted == index // 1_000 * 1_000


def test_wrong_items_are_named(sqlite_url: str) -> None:
    with Engine(sqlite_url, value_limit=1_000) as engine:
        wrong: list[Any] = [(1,), (2,), 3]
        with pytest.raises(InvalidArgument, match=r"^item 2 of the batch is 3, and must be a tuple"):
            engine.submit_batch(add_in_batch, wrong)
        with pytest.raises(TypeError, match=r"^item 1 of the batch: .*too many positional arguments"):
            engine.submit_batch(add_in_batch, [(1,), (1, 2, 3)])
        with pytest.raises(InvalidArgument, match=r"item 1 of the batch.*1000"):
            engine.submit_batch(describe_in_batch, [("x",), ("x" * 2_000,)])
        nothing: Any = 7
        with pytest.raises(TypeError, match="not iterable"):
            engine.submit_batch(add_in_batch, nothing)
        stream: Any = async_numbers(3)
        with pytest.raises(InvalidArgument, match="needs an event loop: use an AsyncEngine"):
            engine.submit_batch(add_in_batch, stream)
        asyncio.run(stream.aclose())


def test_other_inputs_are_refused_and_named(url: str) -> None:
    def inputs(changed: int | None, count: int = 2_500) -> Iterator[tuple[int]]:
        return ((-1 if n == changed else n,) for n in range(count))

    with Engine(url) as engine:
        batch = engine.submit_batch(add_in_batch, inputs(None), batch_id="b")
        for changed in (0, 999, 1_000, 2_499):
            with pytest.raises(WorkflowIdConflict, match=f"item {changed} is the first that differs"):
                engine.submit_batch(add_in_batch, inputs(changed), batch_id="b")
        for count in (0, 2_400, 2_501, 70_000):
            with pytest.raises(WorkflowIdConflict):
                engine.submit_batch(add_in_batch, inputs(None, count), batch_id="b")
        with pytest.raises(WorkflowIdConflict, match="add_in_batch.*describe_in_batch"):
            engine.submit_batch(describe_in_batch, inputs(None), batch_id="b")
        assert batch.wait() == all_completed(2_500)
        engine.run(add_in_batch.options(workflow_id="single"), 1)
        with pytest.raises(WorkflowIdConflict, match="an execution, not to a batch"):
            engine.submit_batch(add_in_batch, inputs(None), batch_id="single")


def test_all_spellings_of_inputs_are_equal(url: str) -> None:
    with Engine(url) as engine:
        engine.submit_batch(add_in_batch, numbers(1_500), batch_id="b")
        # the default of `other`, given by position
        spelled = [(n, 1) for n in range(1_500)]
        assert engine.submit_batch(add_in_batch, spelled, batch_id="b").wait() == all_completed(1_500)
        spelled[1_234] = (1_234, 2)
        with pytest.raises(WorkflowIdConflict, match="item 1234 is the first that differs"):
            engine.submit_batch(add_in_batch, spelled, batch_id="b")


def test_get_batch_finds_batches_only(url: str) -> None:
    with Engine(url) as engine:
        batch = engine.submit_batch(add_in_batch, numbers(3))
        assert engine.get_batch(batch.batch_id).batch_id == batch.batch_id
        assert repr(batch) == f"BatchHandle({batch.batch_id!r})"
        batch.wait()
        assert engine.show(batch.item_id(2)).output == 3
        with pytest.raises(NotFound):
            engine.get_batch("unknown")
        with pytest.raises(InvalidArgument, match=r"of workflow \"add_in_batch\", not \"describe_in_batch\""):
            engine.get_batch(batch.batch_id, describe_in_batch)
        engine.run(add_in_batch.options(workflow_id="single"), 1)
        with pytest.raises(InvalidArgument, match="an execution, not a batch"):
            engine.get_batch("single")
        for index in (-1, 2**31 - 1):
            with pytest.raises(InvalidArgument, match="index"):
                batch.item_id(index)


def test_options_of_batch_are_checked(sqlite_url: str) -> None:
    with Engine(sqlite_url, queues=[Queue("q", max_depth=1)], serve_queues=[]) as engine:
        with pytest.raises(
            TypeError, match="'delay' is not an option of batches; the options are batch_id, r"
        ):
            engine.submit_batch(add_in_batch, [], **{"delay": 3})
        refused = {
            "workflow_id": "w",
            "execution_timeout": 1.0,
            "delay": 1.0,
            "dedup_id": "d",
            "on_full": "wait",
        }
        for name, value in refused.items():
            options: dict[str, Any] = {"queue": "q", name: value}
            with pytest.raises(InvalidArgument, match=f"{name} is .*submit_batch"):
                engine.submit_batch(add_in_batch.options(**options), [])
        with pytest.raises(InvalidArgument, match="batch_id is ''"):
            engine.submit_batch(add_in_batch, [], batch_id="")
        with pytest.raises(InvalidArgument, match="key is 'k', and needs a queue"):
            engine.submit_batch(add_in_batch, [], key="k")
        with pytest.raises(NotFound):
            engine.submit_batch(add_in_batch, [], queue="unknown")
        batch = engine.submit_batch(
            add_in_batch.options(queue="q", key="k"),
            numbers(3),
            priority=-1,
            attributes={"a": "b"},
            batch_id="b",
        )
        found = engine.list(attributes={"a": "b"})
        assert [row.workflow_id for row in found] == ["b"]
        assert (found[0].queue, found[0].key, found[0].priority) == ("q", "k", -1)
        assert batch.counts().queued == 3


@step
def submit_in_step(engine_url: str) -> int:
    with Client(engine_url) as client:
        client.submit_batch(add_in_batch, numbers(3), batch_id="inner")
    return 3


@workflow
def submits_in_step(engine_url: str) -> int:
    return submit_in_step(engine_url)


engines: list[Engine] = []


@workflow
def submits_in_code() -> None:
    engines[0].submit_batch(add_in_batch, numbers(3))


def test_workflow_code_submits_batches_in_steps_only(sqlite_url: str) -> None:
    with Engine(sqlite_url) as engine:
        engines[:] = [engine]
        with pytest.raises(InvalidArgument, match="engine.submit_batch is called in the code of a workflow"):
            engine.run(submits_in_code)
        assert engine.run(submits_in_step, sqlite_url) == 3
        assert engine.get_batch("inner").wait() == all_completed(3)


@pytest.mark.parametrize(("count", "length", "peak"), [(700_000, 300, 8 * 2**20), (300, 2**20, 24 * 2**20)])
def test_generator_of_many_inputs_needs_bounded_memory(
    sqlite_url: str, count: int, length: int, peak: int
) -> None:
    text = "x" * length
    with Client(sqlite_url) as client:
        client.submit_batch(describe_in_batch, numbers(10_000))
        tracemalloc.start()
        resident = resident_bytes()
        batch = client.submit_batch(describe_in_batch, ((f"{text}{n}",) for n in range(count)), batch_id="b")
        assert tracemalloc.get_traced_memory()[1] < peak
        tracemalloc.stop()
        # the inputs have more than 200 MB; the allocator keeps memory for a while that is free
        assert resident_bytes() - resident < 100 * 2**20
        assert batch.counts().queued == count


def resident_bytes() -> int:
    """Returns the memory that the process has resident now."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096
