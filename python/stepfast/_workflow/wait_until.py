"""Waiting for a condition."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from stepfast._runtime.branch import current_branch
from stepfast._runtime.event_loop.asyncio_internals import current_loop
from stepfast._validation.durations import Duration, to_seconds
from stepfast._validation.text import short_repr
from stepfast._workflow.sleep import sleep
from stepfast._workflow.step import Step
from stepfast.errors import InvalidArgument

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T], *, every: Duration, timeout: Duration | None = None
) -> Awaitable[T]:
    """Waits until a condition holds: `wait_until(is_paid, every=60)` in sync code, and
    `await wait_until(is_paid, every=60)` in async code.

    In a workflow each check is a step, and each pause is a durable sleep. During a pause that is longer than
    the engine's `suspend_after`, the execution uses no memory and no place of its queue, and it survives a
    crash. Each round adds two entries to the record, which a replay reads, so choose `every` by the length of
    the whole wait. Outside of workflows, the pauses are those of `time.sleep` or `asyncio.sleep`.

    Args:
        condition: A function or a step without arguments, sync or async. The wait ends when it returns a true
            value.
        every: The pause between two checks, more than 0.
        timeout: The longest sum of all pauses; no limit by default. After it the condition is checked once
            more.

    Returns:
        The true value of the condition; in async code an object to await.

    Raises:
        TimeoutError: The condition did not hold within the time.
        InvalidArgument: The condition is no function, or a time span is out of its bounds.
        Exception: The exception that the condition has raised.
    """
    if not callable(condition):
        raise InvalidArgument(f"condition is {short_repr(condition)}, and must be a function")
    pause = to_seconds("every", every, 0)
    if pause == 0:
        raise InvalidArgument(
            "every is 0, and must be more: the checks would fill the record without a pause"
        )
    limit = None if timeout is None else to_seconds("timeout", timeout, 0)
    check: Step[[], Any] = _step_of(condition)
    branch = current_branch()
    is_on_loop = current_loop() is not None if branch is None else branch.is_on_loop
    wait = _wait_async if is_on_loop else _wait
    return cast("Awaitable[T]", wait(check, pause, limit))


def _step_of(condition: Callable[[], Any]) -> Step[[], Any]:
    if isinstance(condition, Step):
        return cast("Step[[], Any]", condition)
    return Step(
        condition,
        name=None,
        retries=0,
        backoff=1.0,
        backoff_factor=2.0,
        max_backoff=60.0,
        jitter=0.5,
        timeout=None,
        speculative=False,
        retry_on=None,
        retry_if=None,
    )


def _wait(check: Step[[], Any], pause: float, limit: float | None) -> Any:
    waited = 0.0
    while not (value := check()):
        length = _next_pause(check, pause, limit, waited)
        sleep(length)
        waited += length
    return value


async def _wait_async(check: Step[[], Any], pause: float, limit: float | None) -> Any:
    waited = 0.0
    while not (value := await (check() if check.is_async else check.in_thread())):
        length = _next_pause(check, pause, limit, waited)
        await sleep(length)
        waited += length
    return value


def _next_pause(check: Step[[], Any], pause: float, limit: float | None, waited: float) -> float:
    """Returns the next pause in seconds. Depends on the number of rounds only, so each replay repeats it."""
    if limit is None:
        return pause
    if waited >= limit:
        raise TimeoutError(f"the condition {check.name!r} did not hold within {limit:g} s of pauses")
    return min(pause, limit - waited)


__all__ = ["wait_until"]
