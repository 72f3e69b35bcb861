"""Task factories that a program sets while an engine is open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from stepfast import AsyncEngine, gather, sleep, step, workflow


@step
async def square_on_loop(n: int) -> int:
    await asyncio.sleep(0)
    return n * n


async def square_on_loop_twice(n: int) -> int:
    await sleep(0.001 * n)
    return await square_on_loop(await square_on_loop(n))


@workflow
async def squares_in_tasks(n: int) -> list[int]:
    squares = await asyncio.gather(*[square_on_loop_twice(i) for i in range(n)])
    return [*squares, *await gather(square_on_loop(n), square_on_loop(n + 1))]


class CountingFactory:
    """A task factory of a program, which counts the tasks that it creates."""

    def __init__(self, inner: Any = None) -> None:
        self.inner, self.task_count = inner, 0

    def __call__(self, loop: Any, coro: Any, **kwargs: Any) -> asyncio.Future[Any]:
        self.task_count += 1
        if self.inner is not None:
            task: asyncio.Future[Any] = self.inner(loop, coro, **kwargs)
            return task
        return asyncio.Task(coro, loop=loop, **kwargs)


LOOP_FACTORIES = pytest.mark.parametrize(
    "make_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
LoopFactory = Callable[[], asyncio.AbstractEventLoop]


async def check_engine(engine: AsyncEngine) -> None:
    async with asyncio.timeout(20):
        assert await engine.run(squares_in_tasks, 3) == [0, 1, 16, 9, 16]
        handle = await engine.start(squares_in_tasks, 3)
        assert await handle == [0, 1, 16, 9, 16]
    # each task is a branch with a path of its own, which a replay repeats
    paths = {point.path for point in (await engine.show(handle.workflow_id)).checkpoints}
    assert paths == {f"{branch}.0.{call}" for branch in (1, 2, 3) for call in (1, 2, 3)} | {"4", "5"}


@LOOP_FACTORIES
def test_factory_is_chained_if_set_after_open(make_loop: LoopFactory, url: str) -> None:
    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        async with AsyncEngine(url, suspend_after=0.0) as engine:
            await check_engine(engine)
            loop.set_task_factory(None)
            assert loop.get_task_factory() is None
            await check_engine(engine)
            counting_factory = CountingFactory()
            loop.set_task_factory(counting_factory)
            assert loop.get_task_factory() is counting_factory
            await check_engine(engine)
            assert counting_factory.task_count >= 11
            wrapping_factory = CountingFactory(loop.get_task_factory())
            loop.set_task_factory(wrapping_factory)
            await check_engine(engine)
            assert wrapping_factory.task_count >= 11
            with pytest.raises(TypeError):
                loop.set_task_factory(7)
        assert loop.get_task_factory() is wrapping_factory
        before = wrapping_factory.task_count
        await asyncio.create_task(asyncio.sleep(0))
        assert wrapping_factory.task_count > before

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())


@LOOP_FACTORIES
def test_last_close_restores_task_factory_of_the_loop(make_loop: LoopFactory) -> None:
    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        names = set(vars(loop))
        for before in (None, CountingFactory()):
            loop.set_task_factory(before)
            async with AsyncEngine("memory:") as first:
                async with AsyncEngine("memory:") as second:
                    await check_engine(second)
                await check_engine(first)
                assert loop.get_task_factory() is before
            assert loop.get_task_factory() is before
            assert set(vars(loop)) == names

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())
