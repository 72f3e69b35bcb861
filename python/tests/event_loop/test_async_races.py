"""Races in async code: the other calls are cancelled, and a replay has the same winner."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

import stepfast
from stepfast import (
    AsyncEngine,
    InvalidArgument,
    WorkflowCancelled,
    gather,
    race,
    receive,
    set_event,
    sleep,
    step,
    workflow,
)

#: The winners of each race that workflows have noted, over all their runs.
seen: defaultdict[Any, set[Any]] = defaultdict(set)


@pytest.fixture(autouse=True)
def no_winners(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Checks after each test that every race has ended in the same way in all runs, and that asyncio has
    reported nothing."""
    seen.clear()
    yield
    assert all(len(winners) == 1 for winners in seen.values()), seen
    gc.collect()
    assert [record for record in caplog.records if record.name == "asyncio"] == []


@step
async def double_in_race_async(n: int) -> int:
    return 2 * n


@step
async def refuse_in_race_async(n: int) -> int:
    raise ValueError(f"refused {n}")


@workflow
async def races_two_messages_async() -> list[Any]:
    winner = await race(receive("a"), receive("b"), sleep(3600))
    seen["messages"].add(winner)
    await set_event("winner", winner[0])
    await receive("continue")
    return [winner, await receive("b" if winner[0] == 0 else "a")]


async def abandoned(engine: AsyncEngine, workflow_id: str) -> list[str]:
    """Returns the names of the calls that the execution has abandoned."""
    calls = (await engine.show(workflow_id)).checkpoints
    return sorted(call.name for call in calls if call.kind == "abandoned")


@pytest.mark.parametrize("suspend_after", [5.0, 0.001])
@pytest.mark.parametrize("first", ["a", "b"])
def test_message_of_async_loser_stays_pending(url: str, suspend_after: float, first: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url, suspend_after=suspend_after) as engine:
            handle = await engine.start(races_two_messages_async)
            await handle.send(f"to {first}", topic=first)
            index = "ab".index(first)
            assert await handle.get_event("winner") == index
            other = "ab"[1 - index]
            await handle.send(f"to {other}", topic=other)
            await handle.send(None, topic="continue")
            assert await handle == [(index, f"to {first}"), f"to {other}"]
            assert await abandoned(engine, handle.workflow_id) == sorted([other, "sleep"])

    asyncio.run(main())


@workflow
async def races_message_and_timer_async(rounds: int) -> list[Any]:
    received: list[Any] = []
    for i in range(rounds):
        winner, value = await race(receive("n"), sleep(0.002))
        seen[i].add((winner, value))
        if winner == 0:
            received.append(value)
    while len(received) < rounds:
        received.append(await receive("n"))
    return received


@pytest.mark.parametrize("suspend_after", [5.0, 0.001])
def test_each_message_is_received_once_beside_async_timers(url: str, suspend_after: float) -> None:
    rounds = 100

    async def main() -> None:
        async with AsyncEngine(url, suspend_after=suspend_after) as engine:
            handle = await engine.start(races_message_and_timer_async, rounds)
            for i in range(rounds):
                await handle.send(i, topic="n")
            assert await handle == list(range(rounds))

    asyncio.run(main())


@workflow
async def races_in_races_async() -> list[Any]:
    async def inner() -> tuple[int, Any]:
        return await race(receive("x"), race(receive("y"), sleep(3600)))

    async def plain(n: int) -> int:
        return n

    first = await race(inner(), gather(receive("x"), inner()), receive("go"))
    seen["first"].add(first)
    await set_event("first", None)
    second = await race(inner(), sleep(3600))
    third = await race(plain(1), plain(2), receive("never"))
    fourth = await race(receive("never"), plain(2))
    await sleep(0.01)
    return [first, second, third, fourth, await receive("x", timeout=0)]


@pytest.mark.parametrize("suspend_after", [5.0, 0.001])
def test_races_nest_in_async_losers(url: str, suspend_after: float) -> None:
    async def main() -> None:
        async with AsyncEngine(url, suspend_after=suspend_after) as engine:
            handle = await engine.start(races_in_races_async)
            await handle.send("go", topic="go")
            await handle.get_event("first")
            lost = await abandoned(engine, handle.workflow_id)
            assert lost == ["sleep"] * 2 + ["x"] * 3 + ["y"] * 2
            await handle.send("y1", topic="y")
            assert await handle == [(2, "go"), (0, (1, (0, "y1"))), (0, 1), (1, 2), None]

    asyncio.run(main())


@workflow
async def races_with_cleanup() -> list[Any]:
    done: list[str] = []

    async def clean_up() -> None:
        try:
            await receive("never")
        finally:
            await double_in_race_async(1)
            done.append("cleaned up")

    async def suppress() -> str:
        try:
            await receive("never")
        except asyncio.CancelledError:
            done.append("suppressed")
        return "suppressed"

    async def fail() -> None:
        try:
            await receive("never")
        finally:
            raise KeyError("in the loser")

    async def fail_first() -> None:
        await race(refuse_in_race_async(1), receive("never"))

    outcomes: list[Any] = [await race(clean_up(), suppress(), fail(), double_in_race_async(3)), sorted(done)]
    try:
        await race(fail_first(), clean_up())
    except ValueError as error:
        outcomes += [str(error), len(done)]
    await sleep(0.01)
    return outcomes


@pytest.mark.parametrize("suspend_after", [5.0, 0.001])
def test_async_race_waits_for_cleanup_of_losers(url: str, suspend_after: float) -> None:
    async def main() -> None:
        async with AsyncEngine(url, suspend_after=suspend_after) as engine:

            async def start_and_await(function: Any) -> object:
                return await (await engine.start(function))

            for run in (engine.run, start_and_await):
                assert await run(races_with_cleanup) == [
                    (3, 6),
                    ["cleaned up", "suppressed"],
                    "refused 1",
                    3,
                ]

    asyncio.run(main())


@workflow
async def races_within_timeout() -> list[Any]:
    outcomes: list[Any] = []
    try:
        async with stepfast.timeout(0.01):
            outcomes.append(await race(receive("a"), sleep(3600)))
    except TimeoutError:
        outcomes.append("late")
    await set_event("late", None)
    async with stepfast.timeout(3600):
        outcomes.append(await race(receive("a"), sleep(3600)))
    outcomes.append(await race(stepfast.wait_for(receive("b"), 3600), receive("a"), sleep(0.01)))
    return outcomes


@pytest.mark.parametrize("suspend_after", [5.0, 0.001])
def test_timeout_around_race_leaves_messages_pending(url: str, suspend_after: float) -> None:
    async def main() -> None:
        async with AsyncEngine(url, suspend_after=suspend_after) as engine:
            handle = await engine.start(races_within_timeout)
            await handle.get_event("late")
            await handle.send("m", topic="a")
            assert await handle == ["late", (0, "m"), (2, None)]

    asyncio.run(main())


def test_cancel_unwinds_async_race(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            handle = await engine.start(races_two_messages_async)
            assert await handle.cancel()
            with pytest.raises(WorkflowCancelled):
                await handle
            assert await abandoned(engine, handle.workflow_id) == []

    asyncio.run(main())


@workflow
async def races_wrong_arguments_async() -> list[str]:
    texts = []
    for calls in ((), (sleep(1), lambda: 2)):
        try:
            await race(*calls)  # type: ignore[arg-type]
        except InvalidArgument as error:
            texts.append(str(error))
    return texts


def test_arguments_of_async_race_are_checked(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with AsyncEngine(sqlite_url) as engine:
            none, wrong = await engine.run(races_wrong_arguments_async)
            assert none == "race needs at least one call"
            assert wrong.startswith(
                "argument 2 of race has the type function, and must be something to await"
            )
        with pytest.raises(InvalidArgument, match="at least one call"):
            await race()
        done = asyncio.get_running_loop().create_future()
        done.set_result(7)
        assert await race(asyncio.sleep(60), done) == (1, 7)

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
