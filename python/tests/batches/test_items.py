"""Items of batches: sync, async and in processes, with steps, suspension, children, failures and cancels."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import process_steps
import pytest
from watched_process import HANG_TIMEOUT

from stepfast import (
    AsyncEngine,
    BatchCounts,
    Client,
    Engine,
    EngineClosed,
    InvalidArgument,
    Queue,
    ResultTimeout,
    WorkflowCancelled,
    WorkflowIdConflict,
    current,
    sleep,
    step,
    workflow,
)


class OddNumber(Exception):
    def __init__(self, number: int) -> None:
        super().__init__(f"{number} is odd")
        self.number = number


@step(retries=1, backoff=0.0)
def halve(n: int) -> int:
    if n % 2:
        raise OddNumber(n)
    return n // 2


@step
async def halve_async(n: int) -> int:
    if n % 2:
        raise OddNumber(n)
    return n // 2


begun_items, may_end = threading.Semaphore(0), threading.Event()


@step
def wait_until_allowed(n: int) -> int:
    begun_items.release()
    assert may_end.wait(HANG_TIMEOUT)
    return n


@workflow
def ends_when_allowed_item(n: int) -> int:
    return wait_until_allowed(n)


@workflow
def halves_item(n: int) -> int:
    if n % 10 == 0:
        sleep(0.05)
    return halve(n)


@workflow
async def halves_item_async(n: int) -> int:
    if n % 10 == 0:
        await sleep(0.05)
    return await halve_async(n)


@workflow
def calls_child_in_batch(n: int) -> int:
    return halves_item(n) + 1


@workflow
async def calls_child_in_batch_async(n: int) -> int:
    return await halves_item_async(n) + 1


@workflow
def return_item_id() -> str:
    return current().workflow_id


def expected_results(count: int) -> list[Any]:
    return [n // 2 if n % 2 == 0 else ("OddNumber", n) for n in range(count)]


def found_result(index: int, output: Any, error: BaseException | None) -> Any:
    if error is None:
        return output
    assert isinstance(error, OddNumber)
    return (type(error).__name__, error.number)


def test_sync_items_have_steps_and_suspend_and_fail(url: str) -> None:
    with Engine(url, suspend_after=0.001, max_threads=8) as engine:
        batch = engine.submit_batch(halves_item, ((n,) for n in range(200)), batch_id="b")
        assert batch.wait() == BatchCounts(200, 0, 0, 0, 100, 100, 0)
        assert batch.status() == "completed"
        found = [
            found_result(item.index, None if item.exception() else item.result(), item.exception())
            for item in batch.results()
        ]
        assert found == expected_results(200)
        failures = list(batch.failures())
        assert [item.index for item in failures] == list(range(1, 200, 2))
        with pytest.raises(OddNumber, match="7 is odd") as caught:
            failures[3].result()
        assert caught.value.number == 7
        record = engine.show(batch.item_id(7))
        assert [attempt.number for attempt in record.attempts] == [1]
        assert engine.show("b#20").checkpoints[1].value == 10


def test_async_items_have_steps_and_suspend_and_fail(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url, suspend_after=0.001) as engine:
            batch = await engine.submit_batch(halves_item_async, ((n,) for n in range(200)))
            assert await batch.wait() == BatchCounts(200, 0, 0, 0, 100, 100, 0)
            found = [
                found_result(item.index, None if item.exception() else item.result(), item.exception())
                async for item in batch.results()
            ]
            assert found == expected_results(200)
            assert [item.index async for item in batch.failures()] == list(range(1, 200, 2))
            # an async engine runs sync workflows on threads
            sync_batch = await engine.submit_batch(halves_item, ((n,) for n in range(100)))
            assert await sync_batch.wait() == BatchCounts(100, 0, 0, 0, 50, 50, 0)

    asyncio.run(main())


def test_items_run_steps_in_processes(sqlite_url: str) -> None:
    order = process_steps.Order("order-7", [("tea", 1), ("cup", 2)], {"b", "a", "c"})
    with Engine(sqlite_url, max_processes=2) as engine:
        single = engine.run(process_steps.reverses_in_process, order)
        batch = engine.submit_batch(process_steps.reverses_in_process, [(order,)] * 20)
        assert [item.result() for item in batch.results()] == [single] * 20


def test_items_start_children_and_know_their_ids(url: str) -> None:
    with Engine(url) as engine:
        batch = engine.submit_batch(calls_child_in_batch, [(n,) for n in range(0, 40, 2)])
        assert [item.result() for item in batch.results()] == [n // 2 + 1 for n in range(0, 40, 2)]
        ids = engine.submit_batch(return_item_id, [()] * 3)
        for item in ids.results():
            assert engine.show(item.result()).output == item.result()

    async def main() -> None:
        async with AsyncEngine(url) as engine:
            batch = await engine.submit_batch(calls_child_in_batch_async, [(n,) for n in range(0, 40, 2)])
            assert [item.result() async for item in batch.results()] == [n // 2 + 1 for n in range(0, 40, 2)]

    asyncio.run(main())


begun = threading.Semaphore(0)
latch = threading.Event()


@step
def wait_for_latch(n: int) -> int:
    begun.release()
    assert latch.wait(HANG_TIMEOUT)
    return n


@workflow
def waits_in_batch(n: int) -> int:
    return wait_for_latch(n) if n % 5 == 0 else n


@pytest.fixture
def closed_latch() -> Any:
    while begun.acquire(blocking=False):
        pass
    latch.clear()
    yield
    latch.set()


def test_counts_of_running_batch(url: str, closed_latch: None) -> None:
    with Engine(url) as engine:
        batch = engine.submit_batch(waits_in_batch, [(n,) for n in range(10)])
        for _ in range(2):
            assert begun.acquire(timeout=HANG_TIMEOUT)
        counts = batch.counts()
        # the items that do not wait may have ended
        assert (counts.submitted, counts.running + counts.completed) == (10, 10)
        assert counts.running >= 2
        with pytest.raises(ResultTimeout, match=r"BatchHandle\('.*'\) has not ended within 0.01 s"):
            batch.wait(0.01)
        latch.set()
        assert batch.wait(HANG_TIMEOUT).completed == 10


def test_cancel_ends_items_that_have_not_ended(url: str, closed_latch: None) -> None:
    with Engine(url, queues=[Queue("q", concurrency=1)], max_threads=4) as engine:
        batch = engine.submit_batch(waits_in_batch, [(n,) for n in range(3_000)], batch_id="b", queue="q")
        assert begun.acquire(timeout=HANG_TIMEOUT)
        assert batch.cancel() is True
        latch.set()
        counts = batch.wait()
        assert counts.ended == counts.submitted == 3_000
        assert counts.cancelled > 0
        assert counts.failed == 0
        assert batch.status() == "cancelled"
        assert batch.cancel() is False
        results = list(batch.results())
        assert [item.index for item in results] == list(range(3_000))
        assert sum(item.exception() is None for item in results) == counts.completed
        with pytest.raises(WorkflowCancelled):
            results[2_999].result()
        # cancelled items have not failed
        assert list(batch.failures()) == []
        again = engine.submit_batch(waits_in_batch, [(n,) for n in range(3_000)], batch_id="b", queue="q")
        assert again.counts() == counts


def test_cancelled_batch_takes_no_further_items(url: str) -> None:
    def inputs() -> Iterator[tuple[int]]:
        yield from [(n,) for n in range(1_200)]
        raise KeyError("no more")

    with Engine(url) as engine:
        with pytest.raises(KeyError):
            engine.submit_batch(halves_item, inputs(), batch_id="b")
        batch = engine.get_batch("b", halves_item)
        assert batch.cancel() is True
        assert batch.wait().submitted == 1_000
        with pytest.raises(WorkflowIdConflict, match="cancelled"):
            engine.submit_batch(halves_item, [(n,) for n in range(1_200)], batch_id="b")


def test_single_item_is_cancelled(url: str) -> None:
    with Engine(url) as engine:
        may_end.clear()
        batch = engine.submit_batch(ends_when_allowed_item, [(n,) for n in range(4)], batch_id="b")
        for _ in range(3):
            # items begin in the order of their indexes
            assert begun_items.acquire(timeout=HANG_TIMEOUT)
        assert engine.cancel("b#2") is True
        handle = engine.get("b#1", ends_when_allowed_item)
        may_end.set()
        assert handle.result() == 1
        assert handle.status() == "completed"
        assert batch.wait() == BatchCounts(4, 0, 0, 0, 3, 0, 1)
        with pytest.raises(WorkflowCancelled):
            engine.get("b#2", ends_when_allowed_item).result()
        assert engine.cancel("b#1") is False


def test_handles_of_closed_engine_raise(sqlite_url: str) -> None:
    with Engine(sqlite_url) as engine:
        batch = engine.submit_batch(halves_item, [(2,), (4,)])
        results = batch.results()
        assert next(results).result() == 1
    for call in (batch.counts, batch.status, batch.wait, batch.cancel):
        with pytest.raises(EngineClosed):
            call()
    with pytest.raises(EngineClosed):
        next(batch.results())
    with pytest.raises(EngineClosed):
        engine.submit_batch(halves_item, [(2,)])


def test_engine_that_closes_during_submission_ends_it(sqlite_url: str) -> None:
    engine = Engine(sqlite_url)

    def inputs() -> Any:
        for n in range(10_000):
            if n == 5_000:
                engine.close()
            yield (n,)

    with pytest.raises(EngineClosed):
        engine.submit_batch(halves_item, inputs(), batch_id="b")


@workflow
def reads_batch(batch_id: str) -> str:
    batch = shared[0]
    calls = (batch.counts, batch.status, batch.wait, batch.cancel, lambda: next(batch.results()))
    for call in calls:
        with pytest.raises(InvalidArgument, match="in the code of a workflow"):
            call()
    return str(batch.batch_id)


shared: list[Any] = []


def test_workflow_code_cannot_use_handles_of_batches(sqlite_url: str) -> None:
    with Engine(sqlite_url) as engine:
        shared[:] = [engine.submit_batch(halves_item, [(2,)], batch_id="b")]
        assert engine.run(reads_batch, "b") == "b"


def test_async_handles_belong_to_their_loop(sqlite_url: str) -> None:
    async def submit() -> Any:
        async with AsyncEngine(sqlite_url) as engine:
            return await engine.submit_batch(halves_item_async, [(2,)], batch_id="b")

    batch = asyncio.run(submit())

    async def use() -> None:
        with pytest.raises(InvalidArgument, match="belongs to the event loop"):
            await batch.wait()

    asyncio.run(use())


#: The numbers whose items fail; a test empties it.
failing_numbers: set[int] = set()


@workflow
def fails_for_now(n: int) -> int:
    half = halve(2 * n)
    if n in failing_numbers:
        raise OddNumber(n)
    return half


@workflow
async def fails_for_now_async(n: int) -> int:
    half = await halve_async(2 * n)
    if n in failing_numbers:
        raise OddNumber(n)
    return half


def test_failed_items_are_retried(url: str) -> None:
    failing_numbers.update(range(0, 200, 50))
    with Engine(url) as engine:
        batch = engine.submit_batch(fails_for_now, [(n,) for n in range(200)], batch_id="retried")
        assert batch.wait() == BatchCounts(200, 0, 0, 0, 196, 4, 0)
        failing_numbers.discard(0)
        assert batch.retry_failed() == 4
        assert batch.wait() == BatchCounts(200, 0, 0, 0, 197, 3, 0)
        failing_numbers.clear()
        assert batch.retry_failed() == 3
        assert batch.wait() == BatchCounts(200, 0, 0, 0, 200, 0, 0)
        assert batch.retry_failed() == 0
        assert [item.result() for item in batch.results()] == list(range(200))
        assert engine.show("retried#50").execution.run_no == 3


def test_failed_items_are_retried_async(sqlite_url: str) -> None:
    failing_numbers.update((3, 7))

    async def main() -> None:
        async with AsyncEngine(sqlite_url) as engine:
            batch = await engine.submit_batch(fails_for_now_async, [(n,) for n in range(10)])
            assert (await batch.wait()).failed == 2
            failing_numbers.clear()
            assert await batch.retry_failed() == 2
            assert await batch.wait() == BatchCounts(10, 0, 0, 0, 10, 0, 0)

    asyncio.run(main())


@workflow
def sleeps_for_hours(hours: int) -> int:
    sleep(3_600 * hours)
    return hours


@workflow
def sleeps_for_hours_in_batch() -> str:
    [item] = sleeps_for_hours.submit_batch([(1,)], run_timeout=timedelta(seconds=0.5)).results()
    return repr(item.exception())


def test_items_are_cancelled_at_the_end_of_their_run_timeout(url: str) -> None:
    with Engine(url, suspend_after=0.01) as engine:
        batch = engine.submit_batch(sleeps_for_hours, [(0,), (1,)], run_timeout=2)
        assert batch.wait().cancelled == 1
        outcomes = [item.exception() for item in batch.results()]
        assert outcomes[0] is None and isinstance(outcomes[1], WorkflowCancelled)
        assert "deadline" in str(outcomes[1])
        assert "deadline" in engine.run(sleeps_for_hours_in_batch)
        with pytest.raises(InvalidArgument, match="run_timeout"):
            engine.submit_batch(sleeps_for_hours, [], run_timeout=-1)


def test_many_executions_are_found(url: str) -> None:
    with Engine(url) as engine:
        batch = engine.submit_batch(halves_item, [(n,) for n in range(1, 30)], batch_id="many")
        engine.run(describes_length.options(workflow_id="large"), "x" * 200_000)
        batch.wait()
        found = engine.get_many(["many#1", "many#2", "absent", "large", "many#99", "many", "many#1"])
        ids = ["many#1", "many#2", None, "large", None, "many", "many#1"]
        assert [None if it is None else it.execution.workflow_id for it in found] == ids
        assert engine.show("many#2").execution.workflow_id == "many#2"
        assert found[0] is not None and found[1] is not None and found[3] is not None
        assert (found[0].output, found[0].error, found[0].execution.status) == (1, None, "completed")
        assert isinstance(found[1].error, OddNumber) and found[1].output is None
        assert found[3].output == "x" * 200_001
        assert engine.get_many([]) == []
        with pytest.raises(InvalidArgument):
            engine.get_many(["a\0b"])
        with pytest.raises(InvalidArgument, match="workflow_id"):
            engine.get_many([7])  # type: ignore[list-item]
        with pytest.raises(InvalidArgument, match=r"workflow_ids is the text 'many#1', and must be several"):
            engine.get_many("many#1")
        assert engine.show("many").args == ()
        with pytest.raises(InvalidArgument, match="get_batch"):
            engine.get("many").result()


@workflow
def describes_length(text: str) -> str:
    return text + "x"


def test_many_executions_are_found_async(sqlite_url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(sqlite_url) as engine:
            batch = await engine.submit_batch(halves_item_async, [(2,), (4,)], batch_id="many")
            await batch.wait()
            found = await engine.get_many(batch.item_id(n) for n in range(3))
            assert [None if it is None else it.output for it in found] == [1, 2, None]

    asyncio.run(main())


@workflow
def returns_at_once(n: int) -> int:
    return n


def test_other_executions_begin_beside_a_batch_that_fills_the_threads(url: str, closed_latch: None) -> None:
    with Engine(url, max_threads=4) as engine, Client(url) as client:
        try:
            batch = engine.submit_batch(waits_in_batch, ((5 * n,) for n in range(3_000)))
            for n in range(10):
                assert client.run(returns_at_once, n) == n
            assert batch.counts().ended == 0
        finally:
            latch.set()
        assert batch.wait().completed == 3_000
