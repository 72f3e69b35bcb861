"""The private names of asyncio, and the internals of CPython, on which the package relies."""

import asyncio
import inspect
import sys
from collections.abc import AsyncGenerator, Coroutine, Generator
from types import CodeType
from typing import Any

from stepfast._runtime.event_loop import asyncio_internals
from stepfast._runtime.event_loop.asyncio_internals import (
    ACLOSE_TYPE,
    COOPERATIVE_WAITS,
    FUT_WAITER,
    GATHERING_FUTURE,
    await_chain,
    calling_frame_outside,
    code_of,
    current_loop,
    function_code,
    gathered_futures,
    is_calling,
    is_task_order_undefined,
    is_time_limited,
    silence_destroyed_task,
)


class Awaitable:
    """An object with an `__await__` that does not expose the code that it awaits."""

    def __init__(self, code: Coroutine[Any, Any, Any]) -> None:
        self._code = code

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._code.__await__()


async def wait_in_generator(event: asyncio.Event) -> AsyncGenerator[None]:
    await Awaitable(event.wait())
    yield


async def wait_without_limit(event: asyncio.Event) -> None:
    async for _ in wait_in_generator(event):
        pass


async def wait_in_timeout(event: asyncio.Event) -> None:
    async with asyncio.timeout(60):
        await event.wait()


async def wait_in_endless_timeout(event: asyncio.Event) -> None:
    async with asyncio.timeout(None):
        await event.wait()


async def wait_with_timeout(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), 60)


async def start(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Returns a task that waits."""
    task = asyncio.ensure_future(coroutine)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


def test_private_names_exist() -> None:
    for place, name in (
        (asyncio, "_get_running_loop"),
        (asyncio.tasks, "_GatheringFuture"),
        (asyncio.tasks, "_wait"),
        (asyncio.tasks, "_cancel_and_wait"),
        (asyncio.Task, "_fut_waiter"),
        (asyncio.Task, "_log_destroy_pending"),
        (sys, "_getframe"),
    ):
        assert hasattr(place, name), name
    # from Python 3.13 on it creates the tasks of `as_completed`
    assert hasattr(asyncio.tasks, "_AsCompletedIterator") == (sys.version_info >= (3, 13))


def test_cooperative_waits_are_coroutine_functions() -> None:
    names = {code.co_qualname for code in COOPERATIVE_WAITS}
    assert names - {"TaskGroup._aexit"} == {
        "Queue.get",
        "Queue.put",
        "Lock.acquire",
        "Event.wait",
        "Condition.wait",
        "Semaphore.acquire",
        "TaskGroup.__aexit__",
        "wait_for",
        "_wait",
        "_cancel_and_wait",
    }
    assert all(code.co_flags & inspect.CO_COROUTINE for code in COOPERATIVE_WAITS)


def test_current_loop_is_running_loop_or_none() -> None:
    async def main() -> bool:
        return current_loop() is asyncio.get_running_loop()

    assert current_loop() is None
    assert asyncio.run(main())


def test_await_chain_ends_with_awaited_code() -> None:
    async def main() -> None:
        event = asyncio.Event()
        task = await start(wait_without_limit(event))
        codes = [code_of(code) for code in await_chain(task.get_coro())]
        assert codes[0] is wait_without_limit.__code__
        assert wait_in_generator.__code__ in codes
        assert codes[-1] is asyncio.Event.wait.__code__
        assert codes[-1] in COOPERATIVE_WAITS
        future = getattr(task, FUT_WAITER)
        assert isinstance(future, asyncio.Future) and not future.done()
        assert getattr(asyncio.current_task(), FUT_WAITER) is None
        event.set()
        await task

    asyncio.run(main())


def test_time_limits_are_found_in_await_chain() -> None:
    async def main() -> None:
        event = asyncio.Event()
        for wait, is_limited in (
            (wait_in_timeout, True),
            (wait_with_timeout, True),
            (wait_without_limit, False),
            (wait_in_endless_timeout, False),
        ):
            task = await start(wait(event))
            assert any(map(is_time_limited, await_chain(task.get_coro()))) == is_limited, wait
            task.cancel()
        for timeout in (60, None):
            waiting = await start(asyncio.sleep(60))
            task = await start(asyncio.wait({waiting}, timeout=timeout))  # type: ignore[arg-type]
            chain = list(await_chain(task.get_coro()))
            assert code_of(chain[-1]) in COOPERATIVE_WAITS
            assert any(map(is_time_limited, chain)) == (timeout is not None)
            task.cancel()
            waiting.cancel()

    asyncio.run(main())


def test_gathering_future_has_futures_that_it_awaits() -> None:
    async def main() -> None:
        event = asyncio.Event()
        tasks = [asyncio.ensure_future(event.wait()) for _ in range(2)]
        gathering = asyncio.gather(*tasks)
        assert isinstance(gathering, GATHERING_FUTURE)
        assert gathered_futures(gathering) == tasks
        event.set()
        await gathering

    asyncio.run(main())


class RecordingFactory:
    """A task factory that records which tasks have an undefined order, and which close generators."""

    def __init__(self) -> None:
        self.are_unordered: list[bool] = []
        self.closing_count = 0

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
        self.are_unordered.append(is_task_order_undefined())
        self.closing_count += type(coro) is ACLOSE_TYPE
        return asyncio.Task(coro, loop=loop, **kwargs)


def test_tasks_of_as_completed_have_undefined_order() -> None:
    async def main() -> None:
        factory = RecordingFactory()
        asyncio.get_running_loop().set_task_factory(factory)
        for ended in asyncio.as_completed([asyncio.sleep(0), asyncio.sleep(0)]):
            await ended
        assert factory.are_unordered == [True, True]
        factory.are_unordered.clear()
        await asyncio.gather(asyncio.sleep(0), asyncio.create_task(asyncio.sleep(0)))
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
        assert factory.are_unordered == [False, False, False]

    asyncio.run(main())


def test_numbered_coroutine_has_name_of_process_step() -> None:
    from stepfast._processes.process_step import await_process_step
    from stepfast._runtime.event_loop.task_origin import NUMBERED_COROUTINES

    code = await_process_step.__code__
    assert {code.co_name} == NUMBERED_COROUTINES
    assert "stepfast" in code.co_filename


def test_abandoned_generator_is_closed_in_task() -> None:
    async def main() -> None:
        factory = RecordingFactory()
        asyncio.get_running_loop().set_task_factory(factory)
        generator = endless_generator()
        await anext(generator)
        del generator
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert factory.closing_count == 1

    asyncio.run(main())


async def endless_generator() -> AsyncGenerator[None]:
    while True:
        yield


def test_silenced_task_is_destroyed_without_message() -> None:
    messages: list[str] = []
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, context: messages.append(context["message"]))
    for is_silenced in (True, False):
        task = loop.create_task(asyncio.sleep(0))
        if is_silenced:
            silence_destroyed_task(task)
        # a task that never began: its coroutine is closed, so that Python does not warn
        coroutine: Any = task.get_coro()
        coroutine.close()
        loop._ready.clear()  # type: ignore[attr-defined]
        del task, coroutine
        assert bool(messages) != is_silenced
    loop.close()


def call(entries: set[CodeType], frame: Any) -> bool:
    """Stands for a function of the package that the code of an execution calls."""
    return is_calling(frame, asyncio.current_task() if current_loop() else None, entries)


def test_calling_frames_end_at_entry_and_task() -> None:
    outer = sys._getframe()

    def entry(is_marked: bool) -> tuple[bool, bool]:
        code = function_code(entry)
        assert code is not None
        entries = {code} if is_marked else set()
        return call(entries, sys._getframe()), call(entries, outer)

    assert entry(False) == (True, True)
    assert entry(True) == (True, False)

    async def main() -> tuple[bool, bool]:
        return call(set(), sys._getframe()), call(set(), outer)

    assert asyncio.run(main()) == (True, False)
    assert function_code(len) is None


def test_calling_frame_outside_package_is_that_of_program() -> None:
    package = asyncio_internals.__file__.rpartition("_runtime")[0]
    assert calling_frame_outside(package) is sys._getframe()
