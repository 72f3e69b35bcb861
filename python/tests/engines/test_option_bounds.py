"""Options that cannot be meant are refused where they are given, and those that can are not."""

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


def nothing() -> None: ...


@step
def square(n: int) -> int:
    return n * n


@step
async def square_async(n: int) -> int:
    return n * n


@step(timeout=math.inf)
def square_in_time(n: int) -> int:
    return n * n


@step(timeout=math.inf, process=True)
def square_in_a_process(n: int) -> int:
    return n * n


@workflow
def squares_in_time(n: int) -> int:
    return square_in_time(n) + square_in_a_process(n)


@workflow
def squares(n: int) -> int:
    return square(n)


@dataclass
class BoundSquares:
    n: int

    @workflow
    def squares(self) -> int:
        return square(self.n)


@workflow
def sleeps(seconds: float) -> str:
    sleep(seconds)
    return "up"


@workflow
async def is_late(seconds: float) -> str:
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


def test_what_is_one_already_is_not_made_another() -> None:
    for make in step, workflow:
        for made in square, squares, square_async:
            with pytest.raises(InvalidArgument, match="is a step or a workflow already"):
                make(made)

        async def numbers() -> AsyncIterator[int]:
            yield 1

        def letters() -> Iterator[str]:
            yield "a"

        with pytest.raises(InvalidArgument, match="is an async generator, which cannot be a"):
            make(numbers)
        with pytest.raises(InvalidArgument, match="is a generator, which cannot be a"):
            make(letters)


def test_a_timeout_in_sync_code_says_what_to_write() -> None:
    with pytest.raises(InvalidArgument, match=r"async with stepfast.timeout"), stepfast.timeout(1):  # type: ignore[attr-defined] # pyright: ignore
        pass


OF_ENGINES = [
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
@pytest.mark.parametrize(("options", "says"), OF_ENGINES)
def test_of_engines(engine: Callable[..., Any], options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        engine(**{"url": "memory:", **options})


OF_STEPS = [
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
@pytest.mark.parametrize(("options", "says"), OF_STEPS)
def test_of_steps(process: bool, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        step(process=process, **options)(nothing)


def test_a_step_runs_in_a_process_or_not() -> None:
    with pytest.raises(InvalidArgument, match="process is 2, and must be True or False"):
        step(process=2)(nothing)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": ""}, "name is '', and must be text"),
        ({"name": nothing}, "name is <function nothing"),
        ({"name": "x" * 256}, "has 256 bytes, at most 255 are allowed"),
        ({"name": "a\0"}, "must consist of printable characters"),
        ({"durable_reads": 0}, "durable_reads is 0, and must be True or False"),
    ],
)
def test_of_workflows(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        workflow(**options)(nothing)


OF_ORDERS = [
    ({"workflow_id": ""}, "workflow_id is '', and must be text"),
    ({"workflow_id": 7}, "workflow_id is 7, and must be text"),
    ({"execution_timeout": -1}, "execution_timeout is -1, and must be at least 0"),
    ({"execution_timeout": "60"}, "execution_timeout is '60', and must be a number of seconds"),
    ({"run_timeout": True}, "run_timeout is True, and must be a number of seconds or a timedelta"),
    ({"wait_timeout": -0.1}, "wait_timeout is -0.1, and must be at least 0"),
    ({"wait_timeout": math.nan}, "wait_timeout is nan, and must be at least 0"),
]


@pytest.mark.parametrize(("options", "says"), OF_ORDERS)
def test_of_starts(options: dict[str, Any], says: str) -> None:
    for given in (squares, squares.options(), BoundSquares(3).squares, RemoteWorkflow("squares")):
        with pytest.raises(InvalidArgument, match=says):
            given.options(**options)


def test_of_other_calls_of_engines() -> None:
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
    ("options", "says"),
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
def test_of_sleeps(options: dict[str, Any], says: str) -> None:
    if options.get("minutes", 1) is None:
        options = {"hours": 1, **options}
    with pytest.raises(InvalidArgument, match=says):
        sleep(**options)


def test_of_timeouts() -> None:
    with pytest.raises(InvalidArgument, match="seconds is nan, and must be a number"):
        stepfast.timeout(math.nan)
    with pytest.raises(InvalidArgument, match="seconds is '5', and must be a number"):
        stepfast.timeout("5")  # type: ignore[arg-type]

    async def main() -> None:
        with pytest.raises(InvalidArgument, match="timeout is nan, and must be a number"):
            await wait_for(asyncio.get_running_loop().create_future(), math.nan)

    asyncio.run(main())


def test_of_waits() -> None:
    with Engine("memory:") as engine:
        handle = engine.start(squares, 2)
        with pytest.raises(InvalidArgument, match="timeout is '5', and must be a number of seconds"):
            handle.result(timeout="5")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="timeout is -1, and must be at least 0"):
            handle.result(timeout=-1)
        assert handle.result(timeout=60) == 4


def test_of_maps() -> None:
    with pytest.raises(InvalidArgument, match="concurrency is 0, and must be at least 1"):
        stepfast.map(square, [1], concurrency=0)
    with pytest.raises(InvalidArgument, match="concurrency is 1.5, and must be a whole number"):
        stepfast.map(square, [1], concurrency=1.5)  # type: ignore[call-overload]

    async def main() -> None:
        with pytest.raises(InvalidArgument, match="concurrency is -1, and must be at least 1"):
            await stepfast.map(square_async, [1], concurrency=-1)

    asyncio.run(main())


def test_what_can_be_meant_is_not_refused(url: str) -> None:
    made = step(
        name="x" * 255,
        retries=2**32 - 1,
        backoff=0,
        backoff_factor=1,
        max_backoff=math.inf,
        jitter=1,
        timeout=math.inf,
        retry_if=bool,
    )(nothing)
    assert isinstance(made, Step)
    assert isinstance(workflow(name="ä" * 127, durable_reads=True)(nothing), Workflow)
    with Engine(
        url, max_running=1, suspend_after=math.inf, value_limit=2**62, max_threads=1, max_processes=1
    ) as engine:
        order = squares.options(workflow_id="a", execution_timeout=math.inf, wait_timeout=math.inf)
        assert engine.run(order, 3) == 9
        assert engine.run(squares_in_time, 3) == 18
        assert len(engine.list(limit=2**31)) == 2
        engine.close(grace=0)


@pytest.mark.parametrize("seconds", [-1.0, 0.0, -1, -math.inf])
def test_a_time_that_has_passed_is_no_mistake(url: str, seconds: float) -> None:
    with Engine(url) as engine:
        assert engine.run(sleeps, seconds) == "up"

    async def main() -> None:
        async with AsyncEngine(url) as engine, asyncio.timeout(60):
            assert await engine.run(is_late, seconds) == "late"
            await sleep(seconds)

    asyncio.run(main())
    sleep(seconds)


@workflow
def gathers_values() -> Any:
    return gather(square(1), square(2))  # type: ignore[call-overload]


@workflow
def gathers_awaitables() -> Any:
    return gather(lambda: square(1), square_async.function(2))  # type: ignore[call-overload]


@workflow
async def gathers_functions() -> Any:
    return await gather(square_async(1), lambda: square_async(2))  # type: ignore[call-overload]


@workflow
async def gathers_numbers() -> Any:
    return await gather(square_async(1), 2)  # type: ignore[call-overload]


def test_gather_takes_calls_and_not_their_values(url: str) -> None:
    instead = r"gather\(lambda: reserve\(1\), lambda: charge\(2\)\)"
    with Engine(url) as engine:
        with pytest.raises(InvalidArgument, match=rf"argument 1 of gather has the type int, .*{instead}"):
            engine.run(gathers_values)
        with pytest.raises(
            InvalidArgument, match=rf"argument 2 of gather has the type coroutine, .*{instead}"
        ):
            engine.run(gathers_awaitables)
    with pytest.raises(InvalidArgument, match="argument 1 of gather has the type int"):
        gather(square(1), square(2))  # type: ignore[call-overload]

    async def main() -> None:
        instead = r"await gather\(reserve\(1\), charge\(2\)\)"
        async with AsyncEngine(url) as engine:
            with pytest.raises(
                InvalidArgument, match=rf"argument 2 of gather has the type function, .*{instead}"
            ):
                await engine.run(gathers_functions)
            with pytest.raises(InvalidArgument, match=rf"argument 2 of gather has the type int, .*{instead}"):
                await engine.run(gathers_numbers)

    asyncio.run(main())


async def asks_elsewhere(error: Exception) -> bool:
    return False


class AsksElsewhere:
    async def __call__(self, error: Exception) -> bool:
        return False


@pytest.mark.parametrize("retry_if", [asks_elsewhere, AsksElsewhere()])
def test_an_async_retry_if_is_refused(retry_if: Any) -> None:
    with pytest.raises(InvalidArgument, match="retry_if is .* must be a sync function"):
        step(retries=1, retry_if=retry_if)(nothing)


MEANINGLESS = [
    ({"on_duplicate": "nonsense"}, 'on_duplicate is \'nonsense\', and must be "reject" or "return_existing"'),
    ({"on_full": "nonsense"}, 'on_full is \'nonsense\', and must be "reject" or "wait"'),
    ({"on_full": "wait"}, "on_full is 'wait', and needs a queue: give queue= too"),
    ({"on_duplicate": "return_existing"}, "needs a dedup_id: give dedup_id= too"),
    ({"queue": "a", "on_duplicate": "return_existing"}, "needs a dedup_id"),
    ({"workflow_id": "\ud800"}, "workflow_id is .*printable characters"),
]


@pytest.mark.parametrize(("options", "says"), MEANINGLESS)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        squares.options(**options)


@pytest.mark.parametrize("what", ["created_from", "created_before"])
def test_a_time_of_a_filter_is_a_datetime(what: str) -> None:
    with (
        Engine("memory:") as engine,
        pytest.raises(InvalidArgument, match=f"{what} is 'yesterday', and must be a datetime"),
    ):
        engine.list(**{what: "yesterday"})  # type: ignore[arg-type]
