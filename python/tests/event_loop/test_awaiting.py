"""What steps, children and `engine.run` return: awaited like a coroutine, and once."""

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
async def gives(value: object) -> object:
    return value


@step
async def breaks_inside(n: int) -> int:
    raise LookupError(f"no {n}")


@workflow
async def counts_up(n: int) -> int:
    return await plus_one(n)


@workflow
async def awaits_twice(n: int) -> str:
    call = plus_one(n)
    assert await call == n + 1
    try:
        await call
    except RuntimeError as error:
        return str(error)
    return "nothing was said"


@workflow
async def is_awaited_by_two(n: int) -> list[str]:
    call = plus_one(n)

    async def waits() -> str:
        try:
            return str(await call)
        except RuntimeError as error:
            return str(error)

    return list(await asyncio.gather(waits(), waits()))


@workflow
async def never_awaits(n: int) -> int:
    plus_one(n)
    gc.collect()
    return n


@workflow
async def closes_unawaited(n: int) -> int:
    plus_one(n).close()
    return await plus_one(n + 1)


@workflow
async def gives_what_iterators_mind(n: int) -> list[object]:
    """Values that would be taken for the arguments of a StopIteration, or for one."""
    return [await gives((n, n)), await gives(()), await gives(StopIteration(n)), await gives(None)]


@workflow
async def shows_where(n: int) -> str:
    try:
        await breaks_inside(n)
    except LookupError as error:
        return traceback.format_exc() if error.__traceback__ is not None else ""
    return ""


@workflow
async def makes_tasks(n: int) -> list[int]:
    call = plus_one(n)
    assert asyncio.iscoroutine(call) and isinstance(call, Coroutine) and not asyncio.isfuture(call)
    task = asyncio.create_task(call, name="counting")
    assert "counting" in repr(task)
    return [await task, await asyncio.ensure_future(plus_one(n + 1))]


def test_a_call_is_awaited_once(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            for run in (await engine.start(awaits_twice, 1)).result, lambda: engine.run(awaits_twice, 1):
                assert await run() == "a call can be awaited only once: create a task for it"
            said = await engine.run(is_awaited_by_two, 1)
            assert said == ["2", "a call can be awaited only once: create a task for it"]

    asyncio.run(main())


def test_a_step_that_nobody_awaits_says_so(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            with pytest.warns(RuntimeWarning, match='step "plus_one" was called, and never awaited'):
                assert await engine.run(never_awaits.options(workflow_id="never"), 1) == 1
            assert not (await engine.show("never")).checkpoints
            assert await engine.run(closes_unawaited, 1) == 3

    asyncio.run(main())


def test_an_execution_that_nobody_awaits_has_not_begun(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            with pytest.warns(RuntimeWarning, match=r"engine.run\(...\) was called, and never awaited"):
                engine.run(counts_up, 1)
            engine.run(counts_up, 1).close()
            assert await engine.count() == 0

    asyncio.run(main())


def test_what_a_step_returns_arrives_as_it_is(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            for how in "start", "run":
                if how == "start":
                    given = await (await engine.start(gives_what_iterators_mind, 1))
                else:
                    given = await engine.run(gives_what_iterators_mind, 1)
                pair, empty, end, nothing = given
                assert (pair, empty, nothing) == ((1, 1), (), None)
                assert isinstance(end, StopIteration) and end.value == 1

    asyncio.run(main())


def test_a_traceback_leads_to_the_body(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            said = await engine.run(shows_where, 1)
            assert "in breaks_inside" in said and "in shows_where" in said and "LookupError: no 1" in said

    asyncio.run(main())


@workflow
async def forgets_to_await(n: int) -> int:
    return plus_one(n) + 1  # type: ignore[operator]


@workflow
async def forgets_a_sleep(n: int) -> int:
    stepfast.sleep(1)  # type: ignore[unused-coroutine]
    return n


@workflow
async def gets_a_wrong_keyword(n: int) -> int:
    return await stepfast.wait_for(plus_one(n), patience=3)  # type: ignore[call-arg]


@workflow
async def is_broken(n: int) -> int:
    await plus_one(n)
    return len(n)  # type: ignore[arg-type]


@workflow
def is_broken_in_a_thread(n: int) -> int:
    return len(n)  # type: ignore[arg-type]


def test_a_forgotten_await_is_an_error_of_the_code(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            for program, says in [
                (forgets_to_await, "unsupported operand"),
                (gets_a_wrong_keyword, "patience"),
            ]:
                with (
                    pytest.warns(RuntimeWarning, match="never awaited"),
                    pytest.raises(TypeError, match=says),
                ):
                    await engine.run(program, 1)
                with (
                    pytest.warns(RuntimeWarning, match="never awaited"),
                    pytest.raises(TypeError, match=says),
                ):
                    await (await engine.start(program, 1))
            with pytest.warns(RuntimeWarning, match="a sleep, or a child, was called, and never awaited"):
                assert await engine.run(forgets_a_sleep, 1) == 1

    asyncio.run(main())


def test_who_runs_code_gets_its_traceback(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            with pytest.raises(TypeError) as raised:
                await engine.run(is_broken, 1)
            assert any(frame.name == "is_broken" for frame in raised.traceback)

    asyncio.run(main())
    with Engine(url) as engine:
        with pytest.raises(TypeError) as raised:
            engine.run(is_broken_in_a_thread, 1)
        assert any(frame.name == "is_broken_in_a_thread" for frame in raised.traceback)


def test_failures_are_logged_where_they_happen(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            with caplog.at_level(logging.INFO, "stepfast"), pytest.raises(TypeError):
                await (await engine.start(is_broken.options(workflow_id="broken"), 1))

    asyncio.run(main())
    [record] = [record for record in caplog.records if record.exc_info]
    assert record.exc_info is not None and record.exc_info[0] is TypeError
    assert getattr(record, "stepfast_workflow_id", None) == "broken"


def test_a_call_is_a_coroutine_to_asyncio(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            assert await asyncio.create_task(engine.run(makes_tasks, 1)) == [2, 3]
            assert await (await engine.start(makes_tasks, 1)) == [2, 3]

    asyncio.run(main())


def test_a_run_that_a_thread_asks_for_begins_on_the_loop(url: str) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with AsyncEngine(url) as engine:

            def asks() -> int:
                return asyncio.run_coroutine_threadsafe(engine.run(counts_up, 1), loop).result(60)

            with ThreadPoolExecutor(1) as threads:
                assert await loop.run_in_executor(threads, asks) == 2

    asyncio.run(main())
