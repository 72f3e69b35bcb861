"""Continuations: executions whose code begins again with other arguments."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import pytest

from stepfast import (
    AsyncEngine,
    Engine,
    InvalidArgument,
    Status,
    WorkflowCancelled,
    receive,
    set_event,
    step,
    workflow,
    write_stream,
)

begun: list[int] = []


@step
def note_part(part: int) -> int:
    begun.append(part)
    return part


@workflow
def count_parts(part: int, last: int = 4) -> int:
    note_part(part)
    if part < last:
        count_parts.continue_as_new(part + 1, last=last)
    return part


@workflow
async def count_parts_async(part: int, last: int = 4) -> int:
    await note_part.in_thread(part)
    if part < last:
        await count_parts_async.continue_as_new(part + 1, last)
    return part


@workflow
def collect_numbers(numbers: list[int]) -> list[int]:
    numbers = [*numbers, receive()]
    set_event("count", len(numbers))
    write_stream("numbers", numbers[-1])
    if len(numbers) < 5:
        collect_numbers.continue_as_new(numbers)
    return numbers


@workflow
async def collect_numbers_async(numbers: list[int]) -> list[int]:
    numbers = [*numbers, await receive()]
    if len(numbers) < 5:
        await collect_numbers_async.continue_as_new(numbers)
    return numbers


@workflow
def continue_other() -> None:
    count_parts.continue_as_new(0)


@workflow
def continue_with_options() -> None:
    continue_with_options.options(queue="q").continue_as_new()


@workflow
def continue_with_wrong_arguments() -> None:
    continue_with_wrong_arguments.continue_as_new(1)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]


@workflow
def continue_for_ever(part: int) -> None:
    note_part(-1)
    continue_for_ever.continue_as_new(part + 1)


@step
def continue_in_step() -> None:
    count_parts.continue_as_new(0)


@workflow
def run_step_that_continues() -> None:
    continue_in_step()


@dataclass
class Loop:
    """A class whose method continues as new."""

    name: str

    @workflow
    def count_in_class(self, part: int) -> str:
        if part < 2:
            self.count_in_class.continue_as_new(part + 1)
        return f"{self.name} {part}"


def test_workflow_continues(url: str) -> None:
    begun.clear()
    with Engine(url) as engine:
        assert engine.run(count_parts, 0) == 4
        assert begun == [0, 1, 2, 3, 4]
        handle = engine.start(count_parts.options(workflow_id="parts"), 0, last=2)
        assert handle.result() == 2
        kinds = [checkpoint.kind for checkpoint in engine.show("parts").checkpoints]
        assert kinds == ["step", "continued", "step", "continued", "step"]
        assert engine.show("parts").kwargs == {"last": 2}


def test_async_workflow_continues(url: str) -> None:
    async def run() -> None:
        async with AsyncEngine(url) as engine:
            assert await engine.run(count_parts_async, 0) == 4
            handle = await engine.start(collect_numbers_async, [])
            for number in range(5):
                await handle.send(number)
            assert await handle == [0, 1, 2, 3, 4]

    asyncio.run(run())


def test_messages_events_and_streams_stay(url: str) -> None:
    with Engine(url, suspend_after=0.01) as engine:
        handle = engine.start(collect_numbers.options(workflow_id="numbers"), [])
        for number in range(5):
            if number == 3:
                while handle.status() is not Status.WAITING:
                    time.sleep(0.01)
            handle.send(number)
        assert handle.result() == [0, 1, 2, 3, 4]
        assert handle.get_event("count", timeout=0) == 5
        assert [value.value for value in engine.read_stream("numbers", "numbers")] == [0, 1, 2, 3, 4]


def test_method_continues(url: str) -> None:
    loop = Loop("loop")
    with Engine(url) as engine:
        assert engine.run(loop.count_in_class, 0) == "loop 2"


def test_cancel_ends_the_loop(url: str) -> None:
    begun.clear()
    with Engine(url) as engine:
        handle = engine.start(continue_for_ever, 0)
        while len(begun) < 5:
            time.sleep(0.01)
        handle.cancel()
        with pytest.raises(WorkflowCancelled):
            handle.result()


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (continue_other, "in workflow 'continue_other'"),
        (continue_with_options, "keeps the options of its start"),
        (run_step_that_continues, "outside of the code of a workflow"),
    ],
)
def test_wrong_continuations_are_refused(url: str, wrong: Any, reason: str) -> None:
    with Engine(url) as engine:
        with pytest.raises(InvalidArgument, match=reason):
            engine.run(wrong)
        with pytest.raises(TypeError):
            engine.run(continue_with_wrong_arguments)
        with pytest.raises(InvalidArgument, match="outside of the code of a workflow"):
            count_parts.continue_as_new(0)
