"""Waiting for a condition."""

from __future__ import annotations

import functools
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, overload

from stepfast._validation.coroutine_function import CoroutineFunction
from stepfast._validation.durations import Duration, to_seconds
from stepfast._validation.text import short_repr
from stepfast._workflow.concurrency.calls import is_on_loop
from stepfast._workflow.sleep import sleep
from stepfast._workflow.step import BoundStep, Step
from stepfast.errors import InvalidArgument

T = TypeVar("T")

#: A remaining time that is shorter, in seconds, counts as over: such times come from rounding.
_MIN_PAUSE_SECONDS = 1e-6


# Type checkers cannot find out whether sync or async code passes a sync condition. The type is Any, so that
# sync code can use the value, and async code can await it.


@overload
def wait_until(
    condition: Callable[[], Coroutine[Any, Any, T]], *, every: Duration, timeout: Duration | None = None
) -> Awaitable[T]: ...


@overload
def wait_until(
    condition: Callable[[], object], *, every: Duration, timeout: Duration | None = None
) -> Any: ...


def wait_until(condition: Callable[[], Any], *, every: Duration, timeout: Duration | None = None) -> Any:
    """Waits until a condition holds: `wait_until(is_paid, every=60)` in sync code, and
    `await wait_until(is_paid, every=60)` in async code.

    In a workflow each check is a step, and each pause is a durable sleep. During a pause that is longer than
    the engine's `suspend_after`, the execution uses no memory and no place of its queue, and it survives a
    crash. Each round adds two entries to the record, which a replay reads, so choose `every` by the length of
    the whole wait. Outside of workflows, the pauses are those of `time.sleep` or `asyncio.sleep`.

    Args:
        condition: A function or a step without arguments, sync or async. The wait ends when it returns a true
            value. `functools.partial` gives arguments to it: `wait_until(partial(is_paid, order), every=60)`.
        every: The pause between two checks, as seconds or as a `timedelta`, more than 0.
        timeout: The longest sum of all pauses, as seconds or as a `timedelta`; no limit by default. After it
            the condition is checked once more. The time of the checks does not count, so a replay ends in
            the same way.

    Returns:
        The true value of the condition; in async code an object to await.

    Raises:
        TimeoutError: The condition did not hold within the time.
        InvalidArgument: The condition is no function, is a workflow, or is async in sync code; or a time span
            is out of its bounds.
        Exception: The exception that the condition has raised, after the last attempt of a step with retries.
    """
    pause = to_seconds("every", every, 0)
    if pause == 0 or pause == math.inf:
        raise InvalidArgument(f"every is {short_repr(every)}, and must be more than 0 s, and finite")
    limit = math.inf if timeout is None else to_seconds("timeout", timeout, 0)
    name, check = _durable_check(condition)
    return (_wait_async if is_on_loop() else _wait)(check, name, pause, limit)


def _durable_check(condition: Any) -> tuple[str, Callable[[], Any]]:
    """Returns the name of the condition's step, and a function that calls the step. In async code the call
    returns an awaitable."""
    is_partial = type(condition) is functools.partial
    function: Any = condition.func if is_partial else condition
    if not callable(function):
        raise InvalidArgument(f"condition is {short_repr(condition)}, and must be a function")
    step: Any = function if issubclass(type(function), Step | BoundStep) else Step(function)
    name: str = step.step.name if issubclass(type(step), BoundStep) else step.name
    if not CoroutineFunction.is_like(step):
        if is_on_loop():
            # a step in a process has a call of its own for async code
            step = getattr(step, "in_process", step.in_thread)
    elif not is_on_loop():
        raise InvalidArgument(
            f"condition is {short_repr(condition)}, which is async, but the code that waits is sync: make "
            "the code async, or the condition sync"
        )
    return name, functools.partial(step, *condition.args, **condition.keywords) if is_partial else step


def _wait(check: Callable[[], Any], name: str, pause: float, limit: float) -> Any:
    rounds = 0
    while not (value := check()):
        sleep(_next_pause(name, pause, limit, rounds))
        rounds += 1
    return value


async def _wait_async(check: Callable[[], Awaitable[Any]], name: str, pause: float, limit: float) -> Any:
    rounds = 0
    while not (value := await check()):
        await sleep(_next_pause(name, pause, limit, rounds))
        rounds += 1
    return value


def _next_pause(name: str, pause: float, limit: float, rounds: int) -> float:
    """Returns the next pause in seconds. Depends on the number of rounds only, so each replay repeats it."""
    remaining = limit - rounds * pause
    if remaining < _MIN_PAUSE_SECONDS:
        raise TimeoutError(f"the condition {name!r} did not hold within {limit:g} s of pauses")
    return min(pause, remaining)


__all__ = ["wait_until"]
