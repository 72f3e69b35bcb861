"""Children that wait in queues."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from watched_process import HANG_TIMEOUT

from stepfast import AsyncEngine, Engine, Error, InvalidArgument, Queue, WorkflowCancelled, sleep, workflow


@workflow
def queued_double(n: int) -> int:
    return 2 * n


@workflow
async def queued_double_async(n: int) -> int:
    await sleep(0)
    return 2 * n


@workflow
def queued_all(count: int) -> list[int]:
    place = queued_double.options(queue="jobs", key="k", priority=3)
    children = [place.start(n) for n in range(count)]
    return [child.result() for child in children] + [place(count)]


@workflow
async def queued_all_async(count: int) -> list[int]:
    place = queued_double_async.options(queue=Queue("jobs"))
    children = [await place.start(n) for n in range(count)]
    outputs = [await child for child in children]
    return [*outputs, await place(count), await queued_double.options(queue="jobs").in_thread(count)]


@workflow
def queued_detached(seconds: float) -> str:
    return queued_double.options(queue="jobs", delay=seconds).start_detached(21)


@workflow
def queued_wrongly() -> list[str]:
    said = []
    for place in (queued_double.options(queue="nowhere"), queued_double.options(delay=0)):
        try:
            place(1)
        except Error as error:
            said.append(error.code)
    return said


@workflow
def queued_for_long() -> None:
    queued_sleeps.options(run_timeout=0.01)()


@workflow
def queued_sleeps() -> None:
    sleep(3600)


@dataclass
class Shop:
    name: str

    @workflow
    def price(self, n: int) -> str:
        return f"{self.name} {n}"

    @workflow
    def prices(self) -> str:
        return self.price.options(queue="jobs")(7)


def test_children_wait_in_a_queue(url: str) -> None:
    with Engine(url, queues=[Queue("jobs", concurrency=2)]) as engine:
        handle = engine.start(queued_all, 5)
        assert handle.result(HANG_TIMEOUT) == [0, 2, 4, 6, 8, 10]
        children = engine.list(parent=handle.workflow_id)
        assert {(child.queue, child.key, child.priority) for child in children} == {("jobs", "k", 3)}


def test_children_of_coroutines_wait_in_a_queue(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url, queues=[Queue("jobs", concurrency=2)]) as engine:
            handle = await engine.start(queued_all_async, 5)
            assert await handle.result() == [0, 2, 4, 6, 8, 10, 10]
            children = await engine.list(parent=handle.workflow_id)
            assert [child.queue for child in children] == ["jobs"] * 7

    asyncio.run(asyncio.wait_for(main(), HANG_TIMEOUT))


def test_a_child_waits_until_its_queue_is_open(url: str) -> None:
    with Engine(url, queues=[Queue("jobs")]) as engine:
        engine.pause_queue("jobs")
        detached = engine.get(engine.run(queued_detached, 0))
        assert detached.status() in ("scheduled", "queued")
        engine.resume_queue("jobs")
        assert detached.result(HANG_TIMEOUT) == 42
        late = engine.get(engine.run(queued_detached, 3600))
        assert late.status() == "scheduled"


def test_what_cannot_be_is_an_outcome(url: str) -> None:
    with Engine(url, queues=[Queue("jobs")]) as engine:
        assert engine.run(queued_wrongly) == ["SF-0037"]
        for options, says in [
            ({"key": "k"}, "needs a queue"),
            ({"queue": "a", "priority": "1"}, "priority"),
            ({"delay": -1}, "delay"),
            ({"run_timeout": -1}, "run_timeout"),
        ]:
            with pytest.raises(InvalidArgument, match=says):
                queued_double.options(**options)  # type: ignore[arg-type]


def test_options_are_for_children(url: str) -> None:
    with Engine(url, queues=[Queue("jobs")]):
        for call in (queued_double.options(queue="jobs"), queued_double.options(queue="jobs").start):
            with pytest.raises(InvalidArgument, match="use engine.start"):
                call(1)


def test_a_method_has_options_too(url: str) -> None:
    with Engine(url, queues=[Queue("jobs")]) as engine:
        assert engine.run(Shop("shop").prices) == "shop 7"


def test_a_child_has_a_timeout_from_when_it_begins(url: str) -> None:
    with Engine(url) as engine:
        handle = engine.start(queued_for_long)
        with pytest.raises(WorkflowCancelled):
            handle.result(HANG_TIMEOUT)
