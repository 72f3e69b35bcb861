"""Awaitables of steps, children and `engine.run`: awaited like coroutines, and only once."""

import asyncio
import gc
import logging
import traceback
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor

import pytest

import stepfast
from stepfast import AsyncEngine, Engine, step, workflow


@step
async def plus_one(n: int) -> int:
    await asyncio.sleep(0)
    return n + 1


@step
async def returns_value(value: object) -> object:
    return value


@step
async def raises_inside(n: int) -> int:
    raise LookupError(f"no {n}")


@workflow
async def calls_plus_one(n: int) -> int:
    return await plus_one(n)


@workflow
async def awaits_twice(n: int) -> str:
    call = plus_one(n)
    assert await call == n + 1
    try:
        await call
    except RuntimeError as error:
        return str(error)
    return "no error"


@workflow
async def awaits_in_two_tasks(n: int) -> list[str]:
    call = plus_one(n)

    async def await_call() -> str:
        try:
            return str(await call)
        except RuntimeError as error:
            return str(error)

    return list(await asyncio.gather(await_call(), await_call()))


@workflow
async def never_awaits(n: int) -> int:
    plus_one(n)
    gc.collect()
    return n


@workflow
async def closes_unawaited_call(n: int) -> int:
    plus_one(n).close()
    return await plus_one(n + 1)


@workflow
async def returns_special_values(n: int) -> list[object]:
    """Returns values that a generator could mistake for a StopIteration or its arguments."""
    return [
        await returns_value((n, n)),
        await returns_value(()),
        await returns_value(StopIteration(n)),
        await returns_value(None),
    ]


@workflow
async def returns_traceback(n: int) -> str:
    try:
        await raises_inside(n)
    except LookupError as error:
        return traceback.format_exc() if error.__traceback__ is not None else ""
    return ""


@workflow
async def creates_tasks(n: int) -> list[int]:
    call = plus_one(n)
    assert asyncio.iscoroutine(call) and isinstance(call, Coroutine) and not asyncio.isfuture(call)
    task = asyncio.create_task(call, name="counting")
    assert "counting" in repr(task)
    return [await task, await asyncio.ensure_future(plus_one(n + 1))]


def test_call_is_awaited_only_once(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            for run in (await engine.start(awaits_twice, 1)).result, lambda: engine.run(awaits_twice, 1):
                assert await run() == "a call can be awaited only once: create a task for it"
            messages = await engine.run(awaits_in_two_tasks, 1)
            assert messages == ["2", "a call can be awaited only once: create a task for it"]

    asyncio.run(main())


def test_unawaited_step_causes_a_warning(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            with pytest.warns(RuntimeWarning, match='step "plus_one" was called, and never awaited'):
                assert await engine.run(never_awaits.options(workflow_id="never"), 1) == 1
            assert not (await engine.show("never")).checkpoints
            assert await engine.run(closes_unawaited_call, 1) == 3

    asyncio.run(main())


def test_unawaited_run_starts_no_execution(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            with pytest.warns(RuntimeWarning, match=r"engine.run\(...\) was called, and never awaited"):
                engine.run(calls_plus_one, 1)
            engine.run(calls_plus_one, 1).close()
            assert await engine.count() == 0

    asyncio.run(main())


def test_step_output_arrives_unchanged(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            for mode in "start", "run":
                if mode == "start":
                    values = await (await engine.start(returns_special_values, 1))
                else:
                    values = await engine.run(returns_special_values, 1)
                pair, empty, end, nothing = values
                assert (pair, empty, nothing) == ((1, 1), (), None)
                assert isinstance(end, StopIteration) and end.value == 1

    asyncio.run(main())


def test_traceback_includes_frame_of_body(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            text = await engine.run(returns_traceback, 1)
            assert (
                "in raises_inside" in text and "in returns_traceback" in text and "LookupError: no 1" in text
            )

    asyncio.run(main())


@workflow
async def forgets_to_await(n: int) -> int:
    return plus_one(n) + 1  # type: ignore[operator]


@workflow
async def forgets_to_await_sleep(n: int) -> int:
    stepfast.sleep(1)  # type: ignore[unused-coroutine]
    return n


@workflow
async def passes_unknown_keyword(n: int) -> int:
    return await stepfast.wait_for(plus_one(n), no_such_keyword=3)  # type: ignore[call-arg]


@workflow
async def raises_type_error(n: int) -> int:
    await plus_one(n)
    return len(n)  # type: ignore[arg-type]


@workflow
def raises_type_error_in_thread(n: int) -> int:
    return len(n)  # type: ignore[arg-type]


def test_forgotten_await_causes_a_warning_or_type_error(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            for program, message in [
                (forgets_to_await, "unsupported operand"),
                (passes_unknown_keyword, "no_such_keyword"),
            ]:
                with (
                    pytest.warns(RuntimeWarning, match="never awaited"),
                    pytest.raises(TypeError, match=message),
                ):
                    await engine.run(program, 1)
                with (
                    pytest.warns(RuntimeWarning, match="never awaited"),
                    pytest.raises(TypeError, match=message),
                ):
                    await (await engine.start(program, 1))
            with pytest.warns(RuntimeWarning, match="a durable call, such as a sleep, was called"):
                assert await engine.run(forgets_to_await_sleep, 1) == 1

    asyncio.run(main())


def test_inline_failure_has_traceback_of_the_code(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            with pytest.raises(TypeError) as raised:
                await engine.run(raises_type_error, 1)
            assert any(frame.name == "raises_type_error" for frame in raised.traceback)

    asyncio.run(main())
    with Engine(url) as engine:
        with pytest.raises(TypeError) as raised:
            engine.run(raises_type_error_in_thread, 1)
        assert any(frame.name == "raises_type_error_in_thread" for frame in raised.traceback)


def test_failure_is_logged_with_its_exception(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            with caplog.at_level(logging.INFO, "stepfast"), pytest.raises(TypeError):
                await (await engine.start(raises_type_error.options(workflow_id="broken"), 1))

    asyncio.run(main())
    [record] = [record for record in caplog.records if record.exc_info]
    assert record.exc_info is not None and record.exc_info[0] is TypeError
    assert getattr(record, "stepfast_workflow_id", None) == "broken"


def test_call_is_a_coroutine_for_asyncio(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            assert await asyncio.create_task(engine.run(creates_tasks, 1)) == [2, 3]
            assert await (await engine.start(creates_tasks, 1)) == [2, 3]

    asyncio.run(main())


def test_run_from_another_thread_begins_on_its_loop(url: str) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with AsyncEngine(url) as engine:

            def run_from_thread() -> int:
                return asyncio.run_coroutine_threadsafe(engine.run(calls_plus_one, 1), loop).result(60)

            with ThreadPoolExecutor(1) as threads:
                assert await loop.run_in_executor(threads, run_from_thread) == 2

    asyncio.run(main())
