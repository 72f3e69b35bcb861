"""`backoff`: fixed, exponential, linear, listed and custom pauses between the attempts of a step."""

import asyncio
import datetime
import logging
import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from stepfast import AsyncEngine, Backoff, Engine, Graph, InvalidArgument, step, workflow


def linear(attempt: int) -> float:
    return attempt / 1_000


def custom(attempt: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=[5, 1, 3][attempt - 1])


OPTIONS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "fixed": ({"backoff": 0.002, "backoff_factor": 1}, ["0.002", "0.002", "0.002"]),
    "exponential": ({"backoff": 0.002, "backoff_factor": 2}, ["0.002", "0.004", "0.008"]),
    "linear": ({"backoff": linear}, ["0.001", "0.002", "0.003"]),
    "custom": ({"backoff": custom}, ["0.005", "0.001", "0.003"]),
    "listed": ({"backoff": [0.005, datetime.timedelta(milliseconds=1)]}, ["0.005", "0.001", "0.001"]),
    "limited": ({"backoff": custom, "max_backoff": 0.002}, ["0.002", "0.001", "0.002"]),
    "none": ({"backoff": lambda attempt: 0}, ["0", "0", "0"]),
}


def fail() -> None:
    raise ConnectionError


async def fail_async() -> None:
    await asyncio.sleep(0)
    raise ConnectionError


def pauses(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Returns the logged pauses, in seconds."""
    found = (re.search(r"the next one begins in (\S+) s", record.getMessage()) for record in caplog.records)
    return [match[1] for match in found if match]


@pytest.mark.parametrize("name", OPTIONS)
def test_pauses_of_a_step(url: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    options, expected = OPTIONS[name]
    failing = step(name="backoff.fail", retries=3, jitter=0, **options)(fail)

    @workflow(name=f"backoff.sync.{name}.{url[:6]}")
    def fails() -> None:
        failing()

    with caplog.at_level(logging.INFO, "stepfast"), Engine(url) as engine, pytest.raises(ConnectionError):
        engine.run(fails)
    assert pauses(caplog) == expected


@pytest.mark.parametrize("name", OPTIONS)
def test_pauses_of_an_async_step(url: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    options, expected = OPTIONS[name]
    failing = step(name="backoff.fail", retries=3, jitter=0, **options)(fail_async)

    @workflow(name=f"backoff.async.{name}.{url[:6]}")
    async def fails() -> None:
        await failing()

    async def main() -> None:
        async with AsyncEngine(url) as engine:
            with pytest.raises(ConnectionError):
                await engine.run(fails)

    with caplog.at_level(logging.INFO, "stepfast"):
        asyncio.run(main())
    assert pauses(caplog) == expected


def test_pauses_of_a_task(url: str, caplog: pytest.LogCaptureFixture) -> None:
    graph = Graph(f"backoff.{url[:6]}")
    graph.task(retries=3, jitter=0, backoff=linear)(fail)
    with caplog.at_level(logging.INFO, "stepfast"), Engine(url) as engine, pytest.raises(ConnectionError):
        engine.run(graph)
    assert pauses(caplog) == ["0.001", "0.002", "0.003"]


def counting(attempts: list[int]) -> Callable[[int], float]:
    def backoff(attempt: int) -> float:
        attempts.append(attempt)
        return 0.0

    return backoff


@pytest.mark.parametrize(("retries", "last"), [(0, 0), (3, 3), (1_000, 1_000), (2**32 - 1, 1_000)])
def test_function_is_called_once_for_each_attempt(retries: int, last: int) -> None:
    attempts: list[int] = []
    step(retries=retries, backoff=counting(attempts))(fail)
    assert attempts == list(range(1, last + 1))


async def backoff_async(attempt: int) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("backoff", "message"),
    [
        (lambda attempt: -1, r"backoff\(1\) is -1, and must be at least 0"),
        (lambda attempt: 2 - attempt, r"backoff\(3\) is -1, and must be at least 0"),
        (lambda attempt: math.nan, r"backoff\(1\) is nan"),
        (lambda attempt: "1", r"backoff\(1\) is '1', and must be a number of seconds or a timedelta"),
        (lambda attempt: None, r"backoff\(1\) is None"),
        (lambda attempt: True, r"backoff\(1\) is True"),
        (lambda attempt: math.inf, r"backoff\(1\) is inf, and must be finite"),
        (lambda attempt: 10**400, r"backoff\(1\) is 1000"),
        (backoff_async, "must be a sync function"),
        ([], "backoff is empty, and must have at least one pause"),
        ([1, -1], r"backoff\[1\] is -1, and must be at least 0"),
        ([1, math.nan], r"backoff\[1\] is nan"),
        ([math.inf], r"backoff\[0\] is inf, and must be finite"),
        ((1, "2"), r"backoff\[1\] is '2', and must be a number of seconds"),
        ([1, 90], r"backoff\[1\] is 90, and max_backoff is 60.0 s: raise max_backoff"),
        ("12", "backoff is '12', and must be a number of seconds"),
        (b"12", "backoff is b'12', and must be a number of seconds"),
        (-1, "backoff is -1"),
        (math.nan, "backoff is nan"),
        (None, "backoff is None"),
    ],
)
def test_wrong_pauses_are_rejected(backoff: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        step(retries=3, backoff=backoff)(fail)
    with pytest.raises(InvalidArgument, match=message):
        step(retries=3, backoff=backoff)(fail_async)


@pytest.mark.parametrize("retries", [0, 3])
@pytest.mark.parametrize("backoff", [lambda attempt: 0, lambda attempt: 1e300, (0,), [60.0] * 2_000])
def test_extreme_pauses_are_accepted(backoff: Backoff, retries: int) -> None:
    step(retries=retries, backoff=backoff)(fail)


@pytest.mark.parametrize(("backoff", "kind"), [(linear, "a function"), ([1, 2], "a list")])
def test_backoff_factor_is_rejected_with_all_pauses(backoff: Backoff, kind: str) -> None:
    with pytest.raises(InvalidArgument, match=f"backoff_factor is 3, and backoff is {kind}"):
        step(retries=3, backoff=backoff, backoff_factor=3)(fail)


def test_error_of_the_function_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        step(retries=1, backoff=lambda attempt: 1 / 0)(fail)
