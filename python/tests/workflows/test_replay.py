"""Whatever code does between durable calls, a replay repeats it, or says why it cannot."""

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from replay_workflows import hold, is_replay, replayed, run_to_hold, warned

from stepfast import AsyncEngine, InvalidArgument, Workflow, WorkflowParked, sleep, step, workflow


class Blind:
    """An argument that cannot be recorded: nothing but its place tells a call apart."""

    def __init__(self, label: str) -> None:
        self.label = label

    def __reduce__(self) -> Any:
        raise TypeError("not to be recorded")


@step
async def work(what: Blind, seconds: float = 0.0) -> str:
    if seconds and not is_replay():
        await asyncio.sleep(seconds)
    return what.label


async def did(label: str, seconds: float = 0.0) -> str:
    """Does something, and looks whether it got the outcome of that and nothing else."""
    done = await work(Blind(label), seconds)
    assert done == label, f"the outcome of {done} for {label}"
    return label


@workflow
async def spins(turns: int) -> list[str]:
    items = ["1", "2"]
    taken = []

    async def first() -> None:
        await did("quick")
        for _ in range(turns):
            await asyncio.sleep(0)
        taken.append(await did("first " + items.pop(0)))

    async def second() -> None:
        await did("slow", 0.05)
        taken.append(await did("second " + items.pop(0)))

    async with asyncio.TaskGroup() as group:
        group.create_task(first())
        group.create_task(second())
    await hold()
    return taken


@workflow
async def spins_itself(turns: int) -> list[str]:
    items = ["1", "2"]

    async def second() -> str:
        await did("slow", 0.05)
        return await did("second " + items.pop(0))

    task = asyncio.create_task(second())
    await did("quick")
    for _ in range(turns):
        await asyncio.sleep(0)
    taken = [await did("first " + items.pop(0)), await task]
    await hold()
    return taken


@workflow
async def long_chains(turns: int) -> list[str]:
    """What one branch sets off goes through many others before it acts."""
    items = ["1", "2"]
    taken = []
    events = [asyncio.Event() for _ in range(turns + 1)]

    async def first() -> None:
        await did("quick")
        events[0].set()

    async def link(i: int) -> None:
        await events[i].wait()
        events[i + 1].set()

    async def last() -> None:
        await events[turns].wait()
        taken.append(await did("first " + items.pop(0)))

    async def second() -> None:
        await did("slow", 0.05)
        taken.append(await did("second " + items.pop(0)))

    await asyncio.gather(first(), second(), last(), *[link(i) for i in range(turns)])
    await hold()
    return taken


@pytest.mark.parametrize("program", [spins, spins_itself, long_chains], ids=lambda program: program.name)
@pytest.mark.parametrize("is_inline", [True, False], ids=["run", "start"])
def test_nothing_is_delivered_while_some_branch_has_turns_to_take(
    program: Workflow[..., Any], is_inline: bool, url: str
) -> None:
    taken = asyncio.run(replayed(url, program, 40, is_inline=is_inline))
    assert taken == ["first 1", "second 2"]


@workflow
async def wakes_by_itself(seconds: float) -> list[str]:
    """A branch that waits for the clock takes turns when it has woken."""
    items = ["1", "2"]
    taken = []

    async def first() -> None:
        await asyncio.sleep(seconds)
        # now the other one has an outcome, at any time
        for _ in range(200):
            await asyncio.sleep(0)
        items.insert(0, "0")
        for _ in range(200):
            await asyncio.sleep(0)
        items.pop(0)

    async def second() -> None:
        await did("slow", seconds + 0.001)
        taken.append(await did("second " + items.pop(0)))

    await asyncio.gather(first(), second())
    await hold()
    return taken


def test_nothing_is_delivered_to_code_that_the_clock_has_woken(url: str) -> None:
    for i in range(5):
        taken = asyncio.run(replayed(f"{url}{i}" if "sqlite" in url else url, wakes_by_itself, 0.02))
        assert taken == ["second 1"]
        if "sqlite" not in url:
            break


@warned
async def gives_up_and_waits(n: int) -> list[str]:
    """A branch gives its call up because of the clock, and goes on to wait for another branch."""
    queue: asyncio.Queue[str] = asyncio.Queue()

    async def first() -> str:
        try:
            async with asyncio.timeout(0.05):
                await sleep(60)
        except TimeoutError:
            pass
        return await queue.get()

    task = asyncio.create_task(first())
    await did("slow", 0.2)
    queue.put_nowait("from the queue")
    return [await task]


def test_code_that_gave_a_call_up_is_waited_for(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            assert await (await engine.start(gives_up_and_waits, 1)) == ["from the queue"]

    asyncio.run(main())


@workflow
async def keeps_calls_that_it_never_awaits(n: int) -> list[str]:
    kept: list[Any] = [work(Blind("never"))]
    kept.append(kept)
    names = [await did("a")]
    kept[0].close()
    del kept
    names.append(await did("b"))
    if not is_replay():
        # the collector may come at any time, or not at all
        gc.collect()
    names.append(await did("c"))
    never = work(Blind("never"))
    task = asyncio.create_task(did("cancelled before it began"))
    task.cancel()
    await asyncio.wait([task])
    if not is_replay():
        never.close()
    names.append(await did("d"))
    await hold()
    if is_replay():
        never.close()
    names.append(await did("e"))
    return names


def test_a_call_that_was_never_awaited_was_never_made(url: str) -> None:
    names = asyncio.run(replayed(url, keeps_calls_that_it_never_awaits, 1))
    assert names == ["a", "b", "c", "d", "e"]


@workflow
async def passes_calls_around(n: int) -> list[str]:
    calls = [work(Blind(f"{i}"), 0.01 * ((n - i) % 3)) for i in range(n)]

    async def awaits(call: Any) -> str:
        await did("before", 0.001)
        return str(await call)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(awaits(call)) for call in reversed(calls)]
    await hold()
    return [task.result() for task in reversed(tasks)]


def test_a_call_belongs_to_whom_made_it(url: str) -> None:
    assert asyncio.run(replayed(url, passes_calls_around, 6)) == [f"{i}" for i in range(6)]


async def numbers() -> AsyncIterator[str]:
    try:
        for i in range(9):
            yield await did(f"{i}")
    finally:
        await did("end")


@workflow
async def closes_generators(n: int) -> list[str]:
    names = []
    async with contextlib.aclosing(numbers()) as generator:
        async for name in generator:
            names.append(name)
            if name == "2":
                break
    async for name in numbers():
        names.append(name)
    await hold()
    return names


def test_steps_of_async_generators_are_replayed(url: str) -> None:
    names = asyncio.run(replayed(url, closes_generators, 1))
    assert names == [f"{i}" for i in [0, 1, 2, *range(9)]]


async def harmless() -> AsyncIterator[int]:
    try:
        yield 1
        yield 2
    finally:
        await asyncio.sleep(0)


@workflow
async def runs_while_others_garbage_is_collected(n: int) -> list[str]:
    names = [await did("a")]
    if not is_replay():
        generator = harmless()
        await anext(generator)
        cycle: list[Any] = [generator]
        cycle.append(cycle)
        del generator, cycle
        gc.collect()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    names.append(await did("b"))
    names += await asyncio.gather(did("c"), did("d"))
    await hold()
    return names


def test_what_closes_generators_has_no_place_among_the_branches(url: str) -> None:
    names = asyncio.run(replayed(url, runs_while_others_garbage_is_collected, 1))
    assert names == ["a", "b", "c", "d"]


@workflow
async def leaves_a_generator(n: int) -> list[str]:
    names = []
    async for name in numbers():
        names.append(name)
        break
    for _ in range(20):
        await asyncio.sleep(0)
    names.append(await did("after"))
    await hold()
    return names


def test_a_generator_that_was_left_makes_no_durable_calls(url: str, caplog: pytest.LogCaptureFixture) -> None:
    assert asyncio.run(replayed(url, leaves_a_generator, 1)) == ["0", "after"]
    assert "aclosing" in caplog.text


async def both(label: str) -> list[str]:
    return [await did(label + "1"), await did(label + "2")]


@workflow
async def as_coroutines_complete(n: int) -> list[list[str]]:
    return [await done for done in asyncio.as_completed([both(f"{i}") for i in range(n)])]


@workflow
async def as_calls_complete(n: int) -> list[str]:
    calls = [work(Blind(f"{i}"), 0.01 * ((n - i) % 3)) for i in range(n)]
    names = [str(await done) for done in asyncio.as_completed(calls)]
    names.append(await did("after " + names[0]))
    await hold()
    return names


def test_as_completed_makes_no_branches_in_the_order_of_a_set(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    # the log record of the failure would keep the coroutines alive
    caplog.set_level(logging.ERROR, "stepfast")

    async def main() -> None:
        async with AsyncEngine(url) as engine:
            with pytest.raises(InvalidArgument, match="order of a set"):
                await engine.run(as_coroutines_complete, 3)
        names = await replayed(url, as_calls_complete, 6)
        assert sorted(names[:-1]) == [f"{i}" for i in range(6)] and names[-1] == "after " + names[0]

    with pytest.warns(RuntimeWarning, match="never awaited"):
        asyncio.run(main())
        gc.collect()


@step
async def last_act(is_over: asyncio.Event) -> str:
    is_over.set()
    return "done"


@workflow
async def cancels_in_the_moment_of_delivery(n: int) -> str:
    is_over = asyncio.Event()

    def cancels() -> None:
        # all branches wait for durable calls by now: the outcome is recorded, and the loop has yet to hear
        time.sleep(0.1)
        task.cancel()

    async def branch() -> str:
        try:
            return await last_act(is_over)
        except asyncio.CancelledError:
            return "cancelled"

    task = asyncio.create_task(branch())
    if not is_replay():
        await is_over.wait()
        asyncio.get_running_loop().call_soon(cancels)
    await did("meanwhile", 0.3)
    outcome = await task
    seen.append(outcome)
    await hold()
    return outcome


seen: list[str] = []


def test_a_call_is_not_cancelled_once_its_outcome_is_recorded(url: str) -> None:
    seen.clear()
    outcome = asyncio.run(replayed(url, cancels_in_the_moment_of_delivery, 1))
    assert seen == [outcome, outcome]


@warned
async def limits_a_call(way: str) -> str:
    try:
        if way == "timeout":
            async with asyncio.timeout(0.05):
                await work(Blind("slow"), 5)
        elif way == "timeout_at":
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + 0.05):
                await work(Blind("slow"), 5)
        elif way == "wait_for":
            await asyncio.wait_for(work(Blind("slow"), 5), 0.05)
        elif way == "wait":
            task = asyncio.create_task(did("slow", 5))
            await asyncio.wait([task], timeout=0.05)
            task.cancel()
            await asyncio.wait([task])
        elif way == "branch":
            async with asyncio.TaskGroup() as group:
                group.create_task(limits_in_branch())
                group.create_task(did("other", 0.01))
    except TimeoutError:
        pass
    await did("fallback")
    await hold()
    return "late"


async def limits_in_branch() -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            await work(Blind("slow"), 5)


@pytest.mark.parametrize("way", ["timeout", "timeout_at", "wait_for", "wait", "branch"])
def test_a_limit_that_is_not_durable_parks_in_a_replay(way: str, url: str) -> None:
    async def main() -> None:
        await run_to_hold(url, limits_a_call, way)
        async with AsyncEngine(url) as engine:
            handle = await engine.start(limits_a_call.options(workflow_id="it"), way)
            with pytest.raises(WorkflowParked) as parked:
                await handle
        said = str(parked.value)
        name = "did" if way == "wait" else "work"
        assert '"work"' in said and "stepfast.timeout" in said and "cx." not in said, (name, said)

    asyncio.run(main())


@workflow
async def a_thread_takes_its_time(n: int) -> list[str]:
    """No durable call, and nothing that a replay could do without."""
    names: list[str] = []

    async def first() -> None:
        names.append(await did("a"))
        await asyncio.to_thread(time.sleep, 0.3)
        names.append(await did("b"))

    async with asyncio.TaskGroup() as group:
        group.create_task(first())
        group.create_task(did("c"))
    await hold()
    return names


def test_a_replay_waits_for_what_comes_from_outside(url: str) -> None:
    assert asyncio.run(replayed(url, a_thread_takes_its_time, 1)) == ["a", "b"]


def test_blind_arguments_are_blind() -> None:
    from stepfast.values import EncodeError, encode

    with pytest.raises(EncodeError):
        encode(Blind("x"))
