"""Task factories that a program sets while an engine is open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from stepfast import AsyncEngine, gather, sleep, step, workflow


@step
async def squared(n: int) -> int:
    await asyncio.sleep(0)
    return n * n


async def squared_twice(n: int) -> int:
    await sleep(0.001 * n)
    return await squared(await squared(n))


@workflow
async def factory_squares(n: int) -> list[int]:
    found = await asyncio.gather(*[squared_twice(i) for i in range(n)])
    return [*found, *await gather(squared(n), squared(n + 1))]


class Counting:
    """A factory of a program."""

    def __init__(self, before: Any = None) -> None:
        self.before, self.made = before, 0

    def __call__(self, loop: Any, coro: Any, **kwargs: Any) -> asyncio.Future[Any]:
        self.made += 1
        if self.before is not None:
            made: asyncio.Future[Any] = self.before(loop, coro, **kwargs)
            return made
        return asyncio.Task(coro, loop=loop, **kwargs)


LOOPS = pytest.mark.parametrize(
    "make_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
Loops = Callable[[], asyncio.AbstractEventLoop]


async def works(engine: AsyncEngine) -> None:
    async with asyncio.timeout(20):
        assert await engine.run(factory_squares, 3) == [0, 1, 16, 9, 16]
        handle = await engine.start(factory_squares, 3)
        assert await handle == [0, 1, 16, 9, 16]
    # each task is a branch, and has a path of its own that a replay finds again
    paths = {point.path for point in (await engine.show(handle.workflow_id)).checkpoints}
    assert paths == {f"{branch}.0.{call}" for branch in (1, 2, 3) for call in (1, 2, 3)} | {"4", "5"}


@LOOPS
def test_a_factory_that_is_set_after_the_engine_was_opened_is_chained(make_loop: Loops, url: str) -> None:
    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        async with AsyncEngine(url, suspend_after=0.0) as engine:
            await works(engine)
            loop.set_task_factory(None)
            assert loop.get_task_factory() is None
            await works(engine)
            counting = Counting()
            loop.set_task_factory(counting)
            assert loop.get_task_factory() is counting
            await works(engine)
            assert counting.made >= 11
            wrapping = Counting(loop.get_task_factory())
            loop.set_task_factory(wrapping)
            await works(engine)
            assert wrapping.made >= 11
            with pytest.raises(TypeError):
                loop.set_task_factory(7)
        assert loop.get_task_factory() is wrapping
        before = wrapping.made
        await asyncio.create_task(asyncio.sleep(0))
        assert wrapping.made > before

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())


@LOOPS
def test_a_loop_has_its_own_factory_again_when_the_last_engine_has_closed(make_loop: Loops) -> None:
    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        names = set(vars(loop))
        for before in (None, Counting()):
            loop.set_task_factory(before)
            async with AsyncEngine("memory:") as first:
                async with AsyncEngine("memory:") as second:
                    await works(second)
                await works(first)
                assert loop.get_task_factory() is before
            assert loop.get_task_factory() is before
            assert set(vars(loop)) == names

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())
