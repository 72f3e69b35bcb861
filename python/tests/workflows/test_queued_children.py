"""Children in queues: their placements, their options and their run timeouts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from watched_process import HANG_TIMEOUT

from stepfast import AsyncEngine, Engine, Error, InvalidArgument, Queue, WorkflowCancelled, sleep, workflow


@workflow
def doubles(n: int) -> int:
    return 2 * n


@workflow
async def doubles_async(n: int) -> int:
    await sleep(0)
    return 2 * n


@workflow
def doubles_in_queue(count: int) -> list[int]:
    place = doubles.options(queue="jobs", key="k", priority=3)
    children = [place.start(n) for n in range(count)]
    return [child.result() for child in children] + [place(count)]


@workflow
async def doubles_in_queue_async(count: int) -> list[int]:
    place = doubles_async.options(queue=Queue("jobs"))
    children = [await place.start(n) for n in range(count)]
    outputs = [await child for child in children]
    return [*outputs, await place(count), await doubles.options(queue="jobs").in_thread(count)]


@workflow
def starts_detached_in_queue(seconds: float) -> str:
    return doubles.options(queue="jobs", delay=seconds).start_detached(21)


@workflow
def catches_invalid_options() -> list[str]:
    codes = []
    for place in (doubles.options(queue="nowhere"), doubles.options(delay=0)):
        try:
            place(1)
        except Error as error:
            codes.append(error.code)
    return codes


@workflow
def limits_sleeping_child() -> None:
    sleeps_one_hour.options(run_timeout=0.01)()


@workflow
def sleeps_one_hour() -> None:
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


def test_children_wait_in_queue(url: str) -> None:
    with Engine(url, queues=[Queue("jobs", concurrency=2)]) as engine:
        handle = engine.start(doubles_in_queue, 5)
        assert handle.result(HANG_TIMEOUT) == [0, 2, 4, 6, 8, 10]
        children = engine.list(parent=handle.workflow_id)
        assert {(child.queue, child.key, child.priority) for child in children} == {("jobs", "k", 3)}


def test_children_of_async_workflow_wait_in_queue(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url, queues=[Queue("jobs", concurrency=2)]) as engine:
            handle = await engine.start(doubles_in_queue_async, 5)
            assert await handle.result() == [0, 2, 4, 6, 8, 10, 10]
            children = await engine.list(parent=handle.workflow_id)
            assert [child.queue for child in children] == ["jobs"] * 7

    asyncio.run(asyncio.wait_for(main(), HANG_TIMEOUT))


def test_child_waits_until_its_queue_is_resumed(url: str) -> None:
    with Engine(url, queues=[Queue("jobs")]) as engine:
        engine.pause_queue("jobs")
        detached_child = engine.get(engine.run(starts_detached_in_queue, 0))
        assert detached_child.status() in ("scheduled", "queued")
        engine.resume_queue("jobs")
        assert detached_child.result(HANG_TIMEOUT) == 42
        delayed_child = engine.get(engine.run(starts_detached_in_queue, 3600))
        assert delayed_child.status() == "scheduled"


def test_invalid_options_of_child_raise_in_its_parent(url: str) -> None:
    with Engine(url, queues=[Queue("jobs")]) as engine:
        assert engine.run(catches_invalid_options) == ["SF-0037"]
        for options, message in [
            ({"key": "k"}, "needs a queue"),
            ({"queue": "a", "priority": "1"}, "priority"),
            ({"delay": -1}, "delay"),
            ({"run_timeout": -1}, "run_timeout"),
        ]:
            with pytest.raises(InvalidArgument, match=message):
                doubles.options(**options)  # type: ignore[arg-type]


def test_child_options_outside_of_workflow_are_refused(url: str) -> None:
    with Engine(url, queues=[Queue("jobs")]):
        for call in (doubles.options(queue="jobs"), doubles.options(queue="jobs").start):
            with pytest.raises(InvalidArgument, match="use engine.start"):
                call(1)


def test_method_as_child_takes_options(url: str) -> None:
    with Engine(url, queues=[Queue("jobs")]) as engine:
        assert engine.run(Shop("shop").prices) == "shop 7"


def test_run_timeout_cancels_child(url: str) -> None:
    with Engine(url) as engine:
        handle = engine.start(limits_sleeping_child)
        with pytest.raises(WorkflowCancelled):
            handle.result(HANG_TIMEOUT)
