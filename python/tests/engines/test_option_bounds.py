"""Bounds of options and arguments: invalid ones are refused at the call, extreme valid ones are accepted."""

import asyncio
import datetime
import math
import pathlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import stepfast
from stepfast import (
    AsyncEngine,
    Engine,
    InvalidArgument,
    RemoteWorkflow,
    Step,
    Workflow,
    gather,
    sleep,
    step,
    wait_for,
    workflow,
)


def do_nothing() -> None: ...


@step
def square(n: int) -> int:
    return n * n


@step
async def square_async(n: int) -> int:
    return n * n


@step(timeout=math.inf)
def square_with_timeout(n: int) -> int:
    return n * n


@step(timeout=math.inf, process=True)
def square_in_process(n: int) -> int:
    return n * n


@workflow
def square_twice_with_timeout(n: int) -> int:
    return square_with_timeout(n) + square_in_process(n)


@workflow
def run_square(n: int) -> int:
    return square(n)


@dataclass
class BoundNumber:
    n: int

    @workflow
    def square_number(self) -> int:
        return square(self.n)


@workflow
def sleep_then_return(seconds: float) -> str:
    sleep(seconds)
    return "up"


@workflow
async def exceed_timeouts(seconds: float) -> str:
    await sleep(seconds)
    try:
        async with stepfast.timeout(seconds):
            await asyncio.Event().wait()
    except TimeoutError:
        pass
    try:
        await wait_for(asyncio.Event().wait(), seconds)
    except TimeoutError:
        return "late"
    return "in time"


def test_step_or_workflow_is_not_decorated_again() -> None:
    for decorate in step, workflow:
        for decorated in square, run_square, square_async:
            with pytest.raises(InvalidArgument, match="is a step or a workflow already"):
                decorate(decorated)

        async def yield_numbers() -> AsyncIterator[int]:
            yield 1

        def yield_letters() -> Iterator[str]:
            yield "a"

        with pytest.raises(InvalidArgument, match="is an async generator, which cannot be a"):
            decorate(yield_numbers)
        with pytest.raises(InvalidArgument, match="is a generator, which cannot be a"):
            decorate(yield_letters)


def test_timeout_in_sync_code_is_refused_with_advice() -> None:
    with pytest.raises(InvalidArgument, match=r"async with stepfast.timeout"), stepfast.timeout(1):  # type: ignore[attr-defined] # pyright: ignore
        pass


INVALID_ENGINE_OPTIONS = [
    ({"url": pathlib.Path("shop.db")}, r"url is PosixPath\('shop.db'\), and must be text"),
    ({"url": ""}, "url is '', and must be text that is not empty"),
    ({"max_running": 0}, "max_running is 0, and must be at least 1"),
    ({"max_running": 2**64}, "max_running is 18446744073709551616, and must be from 1 to"),
    ({"suspend_after": -1}, "suspend_after is -1, and must be at least 0"),
    ({"suspend_after": math.nan}, "suspend_after is nan, and must be at least 0"),
    (
        {"suspend_after": datetime.timedelta(seconds=-5)},
        r"suspend_after is datetime.timedelta\(.*\), and must be at least 0 s",
    ),
    ({"suspend_after": "5"}, "suspend_after is '5', and must be a number of seconds or a timedelta"),
    ({"suspend_after": True}, "suspend_after is True, and must be a number of seconds or a timedelta"),
    ({"value_limit": 0}, "value_limit is 0, and must be at least 1"),
    ({"value_limit": 1e6}, "value_limit is 1000000.0, and must be a whole number"),
    ({"max_threads": 0}, "max_threads is 0, and must be at least 1"),
    ({"max_threads": True}, "max_threads is True, and must be a whole number"),
    ({"max_processes": 0}, "max_processes is 0, and must be at least 1"),
]


@pytest.mark.parametrize("engine", [Engine, AsyncEngine])
@pytest.mark.parametrize(("options", "message"), INVALID_ENGINE_OPTIONS)
def test_invalid_engine_options_are_refused(
    engine: Callable[..., Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        engine(**{"url": "memory:", **options})


INVALID_STEP_OPTIONS = [
    ({"name": ""}, "name is '', and must be text"),
    ({"name": 5}, "name is 5, and must be text"),
    ({"name": "ä" * 128}, "and has 256 bytes, at most 255 are allowed"),
    ({"name": "a\nb"}, r"name is 'a\\nb', and must consist of printable characters"),
    ({"retries": -1}, "retries is -1, and must be from 0 to 4294967295"),
    ({"retries": 2**32}, "retries is 4294967296, and must be from 0 to 4294967295"),
    ({"retries": 1.5}, "retries is 1.5, and must be a whole number"),
    ({"backoff": -0.5}, "backoff is -0.5, and must be at least 0"),
    ({"backoff": "1"}, "backoff is '1', and must be a number of seconds or a timedelta"),
    ({"backoff_factor": 0.5}, "backoff_factor is 0.5, and must be at least 1"),
    ({"backoff_factor": math.nan}, "backoff_factor is nan, and must be at least 1"),
    ({"max_backoff": -1}, "max_backoff is -1, and must be at least 0"),
    ({"jitter": 1.5}, "jitter is 1.5, and must be from 0 to 1"),
    ({"jitter": "half"}, "jitter is 'half', and must be a number"),
    ({"timeout": -1}, "timeout is -1, and must be at least 0"),
    ({"timeout": 0}, "timeout is 0, and no attempt can be that fast: leave it out for no limit"),
    ({"speculative": "yes"}, "speculative is 'yes', and must be True or False"),
    ({"timeout": datetime.timedelta(0)}, "timeout is 0, and no attempt can be that fast"),
    ({"retry_if": OSError}, "retry_if is the class OSError, and must be a function: write retry_on=OSError"),
    ({"retry_on": "OSError"}, "retry_on is 'OSError', and must be an exception class, or a tuple of some"),
    ({"retry_on": (OSError, 5)}, r"retry_on is \(<class 'OSError'>, 5\), and must be an exception class"),
    ({"retry_on": KeyboardInterrupt}, "retry_on is <class 'KeyboardInterrupt'>, and must be an exception"),
    ({"retry_on": ()}, "retry_on is empty: leave retries out"),
    ({"retry_if": OSError("no class")}, "retry_if is OSError.*, and must be a function"),
]


@pytest.mark.parametrize("process", [False, True])
@pytest.mark.parametrize(("options", "message"), INVALID_STEP_OPTIONS)
def test_invalid_step_options_are_refused(process: bool, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        step(process=process, **options)(do_nothing)


def test_invalid_process_option_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="process is 2, and must be True or False"):
        step(process=2)(do_nothing)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, "name is '', and must be text"),
        ({"name": do_nothing}, "name is <function do_nothing"),
        ({"name": "x" * 256}, "has 256 bytes, at most 255 are allowed"),
        ({"name": "a\0"}, "must consist of printable characters"),
        ({"durable_reads": 0}, "durable_reads is 0, and must be True or False"),
    ],
)
def test_invalid_workflow_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        workflow(**options)(do_nothing)


INVALID_START_OPTIONS = [
    ({"workflow_id": ""}, "workflow_id is '', and must be text"),
    ({"workflow_id": 7}, "workflow_id is 7, and must be text"),
    ({"execution_timeout": -1}, "execution_timeout is -1, and must be at least 0"),
    ({"execution_timeout": "60"}, "execution_timeout is '60', and must be a number of seconds"),
    ({"run_timeout": True}, "run_timeout is True, and must be a number of seconds or a timedelta"),
    ({"wait_timeout": -0.1}, "wait_timeout is -0.1, and must be at least 0"),
    ({"wait_timeout": math.nan}, "wait_timeout is nan, and must be at least 0"),
]


@pytest.mark.parametrize(("options", "message"), INVALID_START_OPTIONS)
def test_invalid_start_options_are_refused(options: dict[str, Any], message: str) -> None:
    for startable in (
        run_square,
        run_square.options(),
        BoundNumber(3).square_number,
        RemoteWorkflow("run_square"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            startable.options(**options)


def test_invalid_list_limit_and_close_grace_are_refused() -> None:
    with Engine("memory:") as engine:
        with pytest.raises(InvalidArgument, match="limit is 0, and must be at least 1"):
            engine.list(limit=0)
        with pytest.raises(InvalidArgument, match="grace is -1, and must be at least 0"):
            engine.close(grace=-1)

    async def main() -> None:
        async with AsyncEngine("memory:") as engine:
            with pytest.raises(InvalidArgument, match="limit is 0, and must be at least 1"):
                await engine.list(limit=0)
            with pytest.raises(InvalidArgument, match="grace is -1, and must be at least 0"):
                await engine.close(grace=-1)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seconds": math.nan}, "seconds is nan, and must be a number"),
        ({"seconds": "5"}, "seconds is '5', and must be a number"),
        ({"minutes": None}, "minutes is None, and must be a number"),
        ({"hours": math.nan}, "hours is nan, and must be a number"),
        ({"days": datetime.timedelta(1)}, "days is datetime.timedelta.*, and must be a number"),
        ({"seconds": True}, "seconds is True, and must be a number of seconds or a timedelta"),
        ({"seconds": math.inf, "hours": -math.inf}, "seconds is nan, and must be a number"),
    ],
)
def test_invalid_sleep_durations_are_refused(options: dict[str, Any], message: str) -> None:
    if options.get("minutes", 1) is None:
        options = {"hours": 1, **options}
    with pytest.raises(InvalidArgument, match=message):
        sleep(**options)


def test_invalid_timeout_durations_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="seconds is nan, and must be a number"):
        stepfast.timeout(math.nan)
    with pytest.raises(InvalidArgument, match="seconds is '5', and must be a number"):
        stepfast.timeout("5")  # type: ignore[arg-type]

    async def main() -> None:
        with pytest.raises(InvalidArgument, match="timeout is nan, and must be a number"):
            await wait_for(asyncio.get_running_loop().create_future(), math.nan)

    asyncio.run(main())


def test_invalid_result_timeouts_are_refused() -> None:
    with Engine("memory:") as engine:
        handle = engine.start(run_square, 2)
        with pytest.raises(InvalidArgument, match="timeout is '5', and must be a number of seconds"):
            handle.result(timeout="5")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="timeout is -1, and must be at least 0"):
            handle.result(timeout=-1)
        assert handle.result(timeout=60) == 4


def test_invalid_map_concurrency_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="concurrency is 0, and must be at least 1"):
        stepfast.map(square, [1], concurrency=0)
    with pytest.raises(InvalidArgument, match="concurrency is 1.5, and must be a whole number"):
        stepfast.map(square, [1], concurrency=1.5)  # type: ignore[call-overload]

    async def main() -> None:
        with pytest.raises(InvalidArgument, match="concurrency is -1, and must be at least 1"):
            await stepfast.map(square_async, [1], concurrency=-1)

    asyncio.run(main())


def test_extreme_valid_options_are_accepted(url: str) -> None:
    decorated = step(
        name="x" * 255,
        retries=2**32 - 1,
        backoff=0,
        backoff_factor=1,
        max_backoff=math.inf,
        jitter=1,
        timeout=math.inf,
        retry_if=bool,
    )(do_nothing)
    assert isinstance(decorated, Step)
    assert isinstance(workflow(name="ä" * 127, durable_reads=True)(do_nothing), Workflow)
    with Engine(
        url, max_running=1, suspend_after=math.inf, value_limit=2**62, max_threads=1, max_processes=1
    ) as engine:
        configured = run_square.options(workflow_id="a", execution_timeout=math.inf, wait_timeout=math.inf)
        assert engine.run(configured, 3) == 9
        assert engine.run(square_twice_with_timeout, 3) == 18
        assert len(engine.list(limit=2**31)) == 2
        engine.close(grace=0)


@pytest.mark.parametrize("seconds", [-1.0, 0.0, -1, -math.inf])
def test_negative_and_zero_durations_have_passed(url: str, seconds: float) -> None:
    with Engine(url) as engine:
        assert engine.run(sleep_then_return, seconds) == "up"

    async def main() -> None:
        async with AsyncEngine(url) as engine, asyncio.timeout(60):
            assert await engine.run(exceed_timeouts, seconds) == "late"
            await sleep(seconds)

    asyncio.run(main())
    sleep(seconds)


@workflow
def gather_values() -> Any:
    return gather(square(1), square(2))  # type: ignore[call-overload]


@workflow
def gather_awaitables() -> Any:
    return gather(lambda: square(1), square_async.function(2))  # type: ignore[call-overload]


@workflow
async def gather_functions() -> Any:
    return await gather(square_async(1), lambda: square_async(2))  # type: ignore[call-overload]


@workflow
async def gather_numbers() -> Any:
    return await gather(square_async(1), 2)  # type: ignore[call-overload]


def test_gather_refuses_values_of_calls(url: str) -> None:
    advice = r"gather\(lambda: reserve\(1\), lambda: charge\(2\)\)"
    with Engine(url) as engine:
        with pytest.raises(InvalidArgument, match=rf"argument 1 of gather has the type int, .*{advice}"):
            engine.run(gather_values)
        with pytest.raises(
            InvalidArgument, match=rf"argument 2 of gather has the type coroutine, .*{advice}"
        ):
            engine.run(gather_awaitables)
    with pytest.raises(InvalidArgument, match="argument 1 of gather has the type int"):
        gather(square(1), square(2))  # type: ignore[call-overload]

    async def main() -> None:
        advice = r"await gather\(reserve\(1\), charge\(2\)\)"
        async with AsyncEngine(url) as engine:
            with pytest.raises(
                InvalidArgument, match=rf"argument 2 of gather has the type function, .*{advice}"
            ):
                await engine.run(gather_functions)
            with pytest.raises(InvalidArgument, match=rf"argument 2 of gather has the type int, .*{advice}"):
                await engine.run(gather_numbers)

    asyncio.run(main())


async def is_retryable_async(error: Exception) -> bool:
    return False


class AsyncRetryCondition:
    async def __call__(self, error: Exception) -> bool:
        return False


@pytest.mark.parametrize("retry_if", [is_retryable_async, AsyncRetryCondition()])
def test_async_retry_if_is_refused(retry_if: Any) -> None:
    with pytest.raises(InvalidArgument, match="retry_if is .* must be a sync function"):
        step(retries=1, retry_if=retry_if)(do_nothing)


MEANINGLESS_START_OPTIONS = [
    ({"on_duplicate": "nonsense"}, 'on_duplicate is \'nonsense\', and must be "reject" or "return_existing"'),
    ({"on_full": "nonsense"}, 'on_full is \'nonsense\', and must be "reject" or "wait"'),
    ({"on_full": "wait"}, "on_full is 'wait', and needs a queue: give queue= too"),
    ({"on_duplicate": "return_existing"}, "needs a dedup_id: give dedup_id= too"),
    ({"queue": "a", "on_duplicate": "return_existing"}, "needs a dedup_id"),
    ({"workflow_id": "\ud800"}, "workflow_id is .*printable characters"),
]


@pytest.mark.parametrize(("options", "message"), MEANINGLESS_START_OPTIONS)
def test_meaningless_start_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        run_square.options(**options)


@pytest.mark.parametrize("condition", ["created_from", "created_before"])
@pytest.mark.parametrize("value", ["yesterday", 0, datetime.date(2026, 1, 1), datetime.datetime(2026, 1, 1)])
def test_time_condition_without_zone_is_refused(condition: str, value: Any) -> None:
    with Engine("memory:") as engine:
        for call in (engine.list, engine.count, engine.cancel_all):
            with pytest.raises(
                InvalidArgument, match=f"{condition} is .*, and must be a datetime with a time"
            ):
                call(**{condition: value})


def test_time_conditions_reach_ends_of_calendar() -> None:
    with Engine("memory:") as engine:
        for hours in (-12, 0, 14):
            zone = datetime.timezone(datetime.timedelta(hours=hours))
            first = datetime.datetime.min.replace(tzinfo=zone)
            last = datetime.datetime.max.replace(tzinfo=zone)
            assert engine.list(created_from=first, created_before=last) == []
