"""Replays of async code that does other work between its durable calls."""

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from replay_workflows import hold, is_replay, replay, run_to_hold, time_limited_workflow

from stepfast import AsyncEngine, InvalidArgument, Workflow, WorkflowParked, sleep, step, workflow


class UnrecordableArgument:
    """An argument that cannot be recorded, so that only the path identifies its call."""

    def __init__(self, label: str) -> None:
        self.label = label

    def __reduce__(self) -> Any:
        raise TypeError("this argument cannot be recorded")


@step
async def return_label(argument: UnrecordableArgument, seconds: float = 0.0) -> str:
    if seconds and not is_replay():
        await asyncio.sleep(seconds)
    return argument.label


async def call_and_check(label: str, seconds: float = 0.0) -> str:
    """Calls a step, and asserts that the outcome is that of this call."""
    outcome = await return_label(UnrecordableArgument(label), seconds)
    assert outcome == label, f"the call of {label} received the outcome of {outcome}"
    return label


@workflow
async def spins_in_branch(turns: int) -> list[str]:
    items = ["1", "2"]
    labels = []

    async def first() -> None:
        await call_and_check("quick")
        for _ in range(turns):
            await asyncio.sleep(0)
        labels.append(await call_and_check("first " + items.pop(0)))

    async def second() -> None:
        await call_and_check("slow", 0.05)
        labels.append(await call_and_check("second " + items.pop(0)))

    async with asyncio.TaskGroup() as group:
        group.create_task(first())
        group.create_task(second())
    await hold()
    return labels


@workflow
async def spins_in_main_code(turns: int) -> list[str]:
    items = ["1", "2"]

    async def second() -> str:
        await call_and_check("slow", 0.05)
        return await call_and_check("second " + items.pop(0))

    task = asyncio.create_task(second())
    await call_and_check("quick")
    for _ in range(turns):
        await asyncio.sleep(0)
    labels = [await call_and_check("first " + items.pop(0)), await task]
    await hold()
    return labels


@workflow
async def chains_branches(turns: int) -> list[str]:
    """Passes a signal from one branch through many others, the last of which calls a step."""
    items = ["1", "2"]
    labels = []
    events = [asyncio.Event() for _ in range(turns + 1)]

    async def first() -> None:
        await call_and_check("quick")
        events[0].set()

    async def link(i: int) -> None:
        await events[i].wait()
        events[i + 1].set()

    async def last() -> None:
        await events[turns].wait()
        labels.append(await call_and_check("first " + items.pop(0)))

    async def second() -> None:
        await call_and_check("slow", 0.05)
        labels.append(await call_and_check("second " + items.pop(0)))

    await asyncio.gather(first(), second(), last(), *[link(i) for i in range(turns)])
    await hold()
    return labels


@pytest.mark.parametrize(
    "program", [spins_in_branch, spins_in_main_code, chains_branches], ids=lambda program: program.name
)
@pytest.mark.parametrize("is_inline", [True, False], ids=["run", "start"])
def test_delivery_waits_for_turns_of_all_branches(
    program: Workflow[..., Any], is_inline: bool, url: str
) -> None:
    labels = asyncio.run(replay(url, program, 40, is_inline=is_inline))
    assert labels == ["first 1", "second 2"]


@workflow
async def wakes_by_clock(seconds: float) -> list[str]:
    """Takes turns of the loop in a branch that the clock has woken."""
    items = ["1", "2"]
    labels = []

    async def first() -> None:
        await asyncio.sleep(seconds)
        # from here on the outcome of the other branch may be recorded at any time
        for _ in range(200):
            await asyncio.sleep(0)
        items.insert(0, "0")
        for _ in range(200):
            await asyncio.sleep(0)
        items.pop(0)

    async def second() -> None:
        await call_and_check("slow", seconds + 0.001)
        labels.append(await call_and_check("second " + items.pop(0)))

    await asyncio.gather(first(), second())
    await hold()
    return labels


def test_delivery_waits_for_code_that_clock_has_woken(url: str) -> None:
    for i in range(5):
        labels = asyncio.run(replay(f"{url}{i}" if "sqlite" in url else url, wakes_by_clock, 0.02))
        assert labels == ["second 1"]
        if "sqlite" not in url:
            break


@time_limited_workflow
async def times_out_and_waits(n: int) -> list[str]:
    """Abandons a call in a branch by the clock; the branch then waits for another branch."""
    queue: asyncio.Queue[str] = asyncio.Queue()

    async def first() -> str:
        try:
            async with asyncio.timeout(0.05):
                await sleep(60)
        except TimeoutError:
            pass
        return await queue.get()

    task = asyncio.create_task(first())
    await call_and_check("slow", 0.2)
    queue.put_nowait("from the queue")
    return [await task]


def test_branch_continues_after_abandoned_call(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            assert await (await engine.start(times_out_and_waits, 1)) == ["from the queue"]

    asyncio.run(main())


@workflow
async def keeps_unawaited_calls(n: int) -> list[str]:
    references: list[Any] = [return_label(UnrecordableArgument("unawaited"))]
    references.append(references)
    names = [await call_and_check("a")]
    references[0].close()
    del references
    names.append(await call_and_check("b"))
    if not is_replay():
        # a garbage collection may happen at any time, or not at all
        gc.collect()
    names.append(await call_and_check("c"))
    unawaited = return_label(UnrecordableArgument("unawaited"))
    task = asyncio.create_task(call_and_check("cancelled before its start"))
    task.cancel()
    await asyncio.wait([task])
    if not is_replay():
        unawaited.close()
    names.append(await call_and_check("d"))
    await hold()
    if is_replay():
        unawaited.close()
    names.append(await call_and_check("e"))
    return names


def test_unawaited_call_is_no_durable_call(url: str) -> None:
    names = asyncio.run(replay(url, keeps_unawaited_calls, 1))
    assert names == ["a", "b", "c", "d", "e"]


@workflow
async def passes_calls_to_branches(n: int) -> list[str]:
    calls = [return_label(UnrecordableArgument(f"{i}"), 0.01 * ((n - i) % 3)) for i in range(n)]

    async def await_call(call: Any) -> str:
        await call_and_check("before", 0.001)
        return str(await call)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(await_call(call)) for call in reversed(calls)]
    await hold()
    return [task.result() for task in reversed(tasks)]


def test_call_belongs_to_branch_that_made_it(url: str) -> None:
    assert asyncio.run(replay(url, passes_calls_to_branches, 6)) == [f"{i}" for i in range(6)]


async def generate_numbers() -> AsyncIterator[str]:
    try:
        for i in range(9):
            yield await call_and_check(f"{i}")
    finally:
        await call_and_check("end")


@workflow
async def closes_generators(n: int) -> list[str]:
    names = []
    async with contextlib.aclosing(generate_numbers()) as generator:
        async for name in generator:
            names.append(name)
            if name == "2":
                break
    async for name in generate_numbers():
        names.append(name)
    await hold()
    return names


def test_replay_repeats_steps_of_async_generators(url: str) -> None:
    names = asyncio.run(replay(url, closes_generators, 1))
    assert names == [f"{i}" for i in [0, 1, 2, *range(9)]]


async def generate_without_steps() -> AsyncIterator[int]:
    try:
        yield 1
        yield 2
    finally:
        await asyncio.sleep(0)


@workflow
async def collects_abandoned_generator(n: int) -> list[str]:
    names = [await call_and_check("a")]
    if not is_replay():
        generator = generate_without_steps()
        await anext(generator)
        cycle: list[Any] = [generator]
        cycle.append(cycle)
        del generator, cycle
        gc.collect()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    names.append(await call_and_check("b"))
    names += await asyncio.gather(call_and_check("c"), call_and_check("d"))
    await hold()
    return names


def test_task_that_closes_generators_is_no_branch(url: str) -> None:
    names = asyncio.run(replay(url, collects_abandoned_generator, 1))
    assert names == ["a", "b", "c", "d"]


@workflow
async def abandons_generator(n: int) -> list[str]:
    names = []
    async for name in generate_numbers():
        names.append(name)
        break
    for _ in range(20):
        await asyncio.sleep(0)
    names.append(await call_and_check("after"))
    await hold()
    return names


def test_abandoned_generator_makes_no_durable_calls(url: str, caplog: pytest.LogCaptureFixture) -> None:
    assert asyncio.run(replay(url, abandons_generator, 1)) == ["0", "after"]
    assert "aclosing" in caplog.text


async def call_twice(label: str) -> list[str]:
    return [await call_and_check(label + "1"), await call_and_check(label + "2")]


@workflow
async def as_coroutines_complete(n: int) -> list[list[str]]:
    return [await call for call in asyncio.as_completed([call_twice(f"{i}") for i in range(n)])]


@workflow
async def as_calls_complete(n: int) -> list[str]:
    calls = [return_label(UnrecordableArgument(f"{i}"), 0.01 * ((n - i) % 3)) for i in range(n)]
    names = [str(await call) for call in asyncio.as_completed(calls)]
    names.append(await call_and_check("after " + names[0]))
    await hold()
    return names


def test_as_completed_refuses_branches_in_order_of_set(url: str, caplog: pytest.LogCaptureFixture) -> None:
    # the log record of the failure would keep the coroutines alive
    caplog.set_level(logging.ERROR, "stepfast")

    async def main() -> None:
        async with AsyncEngine(url) as engine:
            with pytest.raises(InvalidArgument, match="order of a set"):
                await engine.run(as_coroutines_complete, 3)
        names = await replay(url, as_calls_complete, 6)
        assert sorted(names[:-1]) == [f"{i}" for i in range(6)] and names[-1] == "after " + names[0]

    with pytest.warns(RuntimeWarning, match="never awaited"):
        asyncio.run(main())
        gc.collect()


@step
async def finish_event(is_over: asyncio.Event) -> str:
    is_over.set()
    return "done"


@workflow
async def cancels_during_delivery(n: int) -> str:
    is_over = asyncio.Event()

    def cancel_task() -> None:
        # now all branches wait for durable calls: the outcome is recorded, and the loop has not received it
        time.sleep(0.1)
        task.cancel()

    async def branch() -> str:
        try:
            return await finish_event(is_over)
        except asyncio.CancelledError:
            return "cancelled"

    task = asyncio.create_task(branch())
    if not is_replay():
        await is_over.wait()
        asyncio.get_running_loop().call_soon(cancel_task)
    await call_and_check("meanwhile", 0.3)
    outcome = await task
    outcomes.append(outcome)
    await hold()
    return outcome


#: The outcomes in all runs.
outcomes: list[str] = []


def test_call_with_recorded_outcome_is_not_cancelled(url: str) -> None:
    outcomes.clear()
    outcome = asyncio.run(replay(url, cancels_during_delivery, 1))
    assert outcomes == [outcome, outcome]


@time_limited_workflow
async def limits_call_by_clock(way: str) -> str:
    try:
        if way == "timeout":
            async with asyncio.timeout(0.05):
                await return_label(UnrecordableArgument("slow"), 5)
        elif way == "timeout_at":
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + 0.05):
                await return_label(UnrecordableArgument("slow"), 5)
        elif way == "wait_for":
            await asyncio.wait_for(return_label(UnrecordableArgument("slow"), 5), 0.05)
        elif way == "wait":
            task = asyncio.create_task(call_and_check("slow", 5))
            await asyncio.wait([task], timeout=0.05)
            task.cancel()
            await asyncio.wait([task])
        elif way == "branch":
            async with asyncio.TaskGroup() as group:
                group.create_task(limit_in_branch())
                group.create_task(call_and_check("other", 0.01))
    except TimeoutError:
        pass
    await call_and_check("fallback")
    await hold()
    return "late"


async def limit_in_branch() -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            await return_label(UnrecordableArgument("slow"), 5)


@pytest.mark.parametrize("way", ["timeout", "timeout_at", "wait_for", "wait", "branch"])
def test_replay_parks_after_time_limit_that_is_not_durable(way: str, url: str) -> None:
    async def main() -> None:
        await run_to_hold(url, limits_call_by_clock, way)
        async with AsyncEngine(url) as engine:
            handle = await engine.start(limits_call_by_clock.options(workflow_id="replayed"), way)
            with pytest.raises(WorkflowParked) as parked:
                await handle
        message = str(parked.value)
        assert '"return_label"' in message and "stepfast.timeout" in message and "cx." not in message, message

    asyncio.run(main())


@workflow
async def waits_for_thread(n: int) -> list[str]:
    """Waits for a thread that is no durable call, and that a replay needs as well."""
    names: list[str] = []

    async def first() -> None:
        names.append(await call_and_check("a"))
        await asyncio.to_thread(time.sleep, 0.3)
        names.append(await call_and_check("b"))

    async with asyncio.TaskGroup() as group:
        group.create_task(first())
        group.create_task(call_and_check("c"))
    await hold()
    return names


def test_replay_waits_for_work_outside_of_steps(url: str) -> None:
    assert asyncio.run(replay(url, waits_for_thread, 1)) == ["a", "b"]


def test_unrecordable_argument_is_not_encoded() -> None:
    from stepfast.values import EncodeError, encode

    with pytest.raises(EncodeError):
        encode(UnrecordableArgument("x"))
