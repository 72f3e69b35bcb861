"""Time spans as numbers of seconds and as `timedelta`, and sleeps until a point in time."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from typing import Any

import numpy
import pytest

import stepfast
from stepfast import (
    AsyncEngine,
    Engine,
    InvalidArgument,
    Queue,
    Rate,
    Status,
    sleep,
    sleep_until,
    step,
    wait_for,
    workflow,
)
from stepfast._validation.durations import to_seconds, to_timeout

SHORT = timedelta(milliseconds=20)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (1.5, 1.5),
        (2, 2.0),
        (timedelta(minutes=1, milliseconds=5), 60.005),
        (timedelta(0), 0.0),
        (Fraction(1, 4), 0.25),
        (numpy.float64(0.5), 0.5),
        (math.inf, math.inf),
        (10**400, math.inf),
    ],
    ids=repr,
)
def test_duration_is_converted_to_seconds(value: Any, seconds: float) -> None:
    for result in (to_seconds("pause", value, 0), to_timeout("pause", value)):
        assert type(result) is float and result == seconds


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (True, "pause is True, and must be a number of seconds or a timedelta"),
        ("5", "pause is '5', and must be a number of seconds or a timedelta"),
        (None, "pause is None, and must be a number of seconds or a timedelta"),
        (math.nan, "pause is nan, and must be at least 0 s"),
        (-1, "pause is -1, and must be at least 0 s"),
        (-math.inf, "pause is -inf, and must be at least 0 s"),
        (timedelta(days=-1), r"pause is datetime.timedelta\(days=-1\), and must be at least 0 s"),
        (-(10**400), "and must be at least 0 s"),
    ],
    ids=repr,
)
def test_invalid_duration_is_refused(value: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        to_seconds("pause", value, 0)


def test_timeout_none_stays_none() -> None:
    assert to_timeout("pause", None) is None


@step(timeout=SHORT)
async def sleep_too_long() -> None:
    await asyncio.sleep(60)


@step(timeout=SHORT)
def sleep_too_long_in_thread() -> None:
    time.sleep(1)


@workflow
def sleeps_twice() -> float:
    started_at = time.monotonic()
    sleep(SHORT)
    sleep(SHORT, minutes=0.0)
    return time.monotonic() - started_at


@workflow
def sleeps_until(at: datetime) -> None:
    sleep_until(at)


@workflow
async def sleeps_until_async(at: datetime) -> None:
    await sleep_until(at)


@workflow
def sleeps_one_day() -> None:
    sleep(timedelta(days=1))


@workflow
def sleeps_too_long_in_thread() -> str:
    try:
        sleep_too_long_in_thread()
    except TimeoutError as error:
        return str(error)
    return "in time"


@workflow
async def sleeps_with_time_limits() -> list[str]:
    messages: list[str] = []
    for call in (sleep_too_long(), sleep_in_timeout(), wait_for(asyncio.sleep(60), SHORT)):
        try:
            await call
        except TimeoutError as error:
            messages.append(str(error))
    return messages


async def sleep_in_timeout() -> None:
    async with stepfast.timeout(SHORT):
        await sleep(60)


def test_sleep_takes_timedelta(url: str) -> None:
    with Engine(url) as engine:
        assert engine.run(sleeps_twice) >= 0.04


def test_sleep_outside_of_workflow_takes_timedelta() -> None:
    started_at = time.monotonic()
    sleep(SHORT)
    asyncio.run(asyncio.wait_for(sleep_async(), 60))
    assert time.monotonic() - started_at >= 0.04


async def sleep_async() -> None:
    await sleep(SHORT)


def test_time_limits_take_timedelta(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            assert await engine.run(sleeps_with_time_limits) == [
                "the attempt took longer than 0.02 s",
                "",
                "",
            ]

    asyncio.run(main())
    with Engine(url) as engine:
        assert engine.run(sleeps_too_long_in_thread) == "the attempt took longer than 0.02 s"


def test_start_options_take_timedelta(url: str) -> None:
    hour = timedelta(hours=1)
    with Engine(url, suspend_after=SHORT) as engine:
        before = datetime.now(UTC)
        handle = engine.start(sleeps_one_day.options(execution_timeout=hour, delay=hour, wait_timeout=hour))
        row = engine.show(handle.workflow_id).execution
        assert row.status is Status.SCHEDULED
        assert row.wake_at is not None and timedelta(minutes=59) < row.wake_at - before < 2 * hour
        assert row.deadline_at is not None and timedelta(minutes=59) < row.deadline_at - before < 2 * hour
        limited = engine.start(sleeps_one_day.options(run_timeout=SHORT))
        with pytest.raises(stepfast.WorkflowCancelled):
            limited.result(timeout=timedelta(minutes=1))
        engine.close(grace=timedelta(seconds=10))


def test_rate_takes_timedelta() -> None:
    rate = Rate(5, per=timedelta(minutes=1))
    assert rate == Rate(5, 60) == Rate(5, 60.0)
    assert (rate.per, rate.burst, hash(rate)) == (60.0, None, hash(Rate(5, 60.0)))
    assert repr(rate) == "Rate(starts=5, per=60.0, burst=None)"
    with pytest.raises(
        InvalidArgument, match="the period of a rate is .*, and must be from 0.001 to 31622400 s"
    ):
        Rate(5, timedelta(days=400))
    with Engine("memory:", queues=[Queue("rated", rate=rate)]) as engine:
        assert [queue.rate for queue in engine.queues()] == [rate]


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=-7))], ids=str)
def test_sleep_ends_at_its_time(url: str, zone: timezone) -> None:
    for offset in (timedelta(milliseconds=150), timedelta(days=-1), timedelta(0)):
        with Engine(url) as engine:
            at = datetime.now(zone) + offset
            engine.run(sleeps_until, at)
            assert datetime.now(UTC) >= at

        async def main(at: datetime) -> None:
            async with AsyncEngine(url) as engine:
                await engine.run(sleeps_until_async, at)

        at = datetime.now(zone) + offset
        asyncio.run(main(at))
        assert datetime.now(UTC) >= at


def test_suspended_sleep_keeps_its_time(url: str) -> None:
    at = datetime.now(UTC) + timedelta(seconds=1.2)
    with Engine(url, suspend_after=0.01) as engine:
        handle = engine.start(sleeps_until, at)
        while engine.show(handle.workflow_id).execution.wake_at is None:
            time.sleep(0.01)
        row = engine.show(handle.workflow_id).execution
        assert (row.status, row.wake_at) == (Status.WAITING, at)
    with Engine(url, suspend_after=0.01) as engine:
        engine.get(handle.workflow_id).result(timeout=60)
        assert datetime.now(UTC) >= at
        (checkpoint,) = engine.show(handle.workflow_id).checkpoints
        assert (checkpoint.name, checkpoint.kind) == ("sleep", "sleep")


def test_sleep_until_outside_of_workflow_ends_at_its_time() -> None:
    at = datetime.now(UTC) + SHORT
    sleep_until(at)
    assert datetime.now(UTC) >= at
    sleep_until(at)

    async def main() -> None:
        at = datetime.now(UTC) + SHORT
        await sleep_until(at)
        assert datetime.now(UTC) >= at

    asyncio.run(main())


@pytest.mark.parametrize("moment", [5, "2030-01-01", datetime(2030, 1, 1), None], ids=repr)
def test_sleep_until_needs_time_zone(moment: Any) -> None:
    with pytest.raises(InvalidArgument, match="at is .*, and must be a datetime with a time zone"):
        sleep_until(moment)


ATTEMPT_ERRORS: list[str] = []


def raising_body(error: Exception) -> Callable[[], None]:
    def attempt() -> None:
        ATTEMPT_ERRORS.append(type(error).__name__)
        raise error

    return attempt


@pytest.mark.parametrize(
    ("options", "error", "attempts"),
    [
        ({"retry_on": ConnectionError}, ConnectionError(), 3),
        ({"retry_on": ConnectionError}, ConnectionResetError(), 3),
        ({"retry_on": ConnectionError}, ValueError(), 1),
        ({"retry_on": (ConnectionError, TimeoutError)}, TimeoutError(), 3),
        ({"retry_on": (ConnectionError, TimeoutError)}, KeyError(), 1),
        ({"retry_on": OSError, "retry_if": lambda error: error.errno == 5}, OSError(5, "busy"), 3),
        ({"retry_on": OSError, "retry_if": lambda error: error.errno == 5}, OSError(6, "gone"), 1),
        ({"retry_on": KeyError, "retry_if": lambda error: error.errno == 5}, OSError(5, "busy"), 1),
        ({}, KeyError(), 3),
    ],
)
def test_retry_on_selects_exception_classes(options: dict[str, Any], error: Exception, attempts: int) -> None:
    attempt = step(name="attempt", retries=2, backoff=0, **options)(raising_body(error))

    @workflow(name=f"retries {options} {error!r}")
    def retries() -> None:
        attempt()

    ATTEMPT_ERRORS.clear()
    with Engine("memory:") as engine, pytest.raises(type(error)):
        engine.run(retries)
    assert len(ATTEMPT_ERRORS) == attempts
