"""The decorator `step`, which makes every kind of step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, ParamSpec, TypeVar, cast, overload

from stepfast._processes import ProcessStep
from stepfast._validation import bounds
from stepfast._validation.backoff import Backoff
from stepfast._validation.durations import Duration
from stepfast._validation.retry_rule import RetryOn
from stepfast._workflow.step import Step

P = ParamSpec("P")
R = TypeVar("R", covariant=True)


@overload
def step(function: Callable[P, R], /) -> Step[P, R]: ...


@overload
def step(
    *,
    process: Literal[True],
    name: str | None = None,
    retries: int = 0,
    backoff: Backoff = 1.0,
    backoff_factor: float = 2.0,
    max_backoff: Duration = 60.0,
    jitter: float = 0.5,
    timeout: Duration | None = None,
    speculative: bool = False,
    retry_on: RetryOn | None = None,
    retry_if: Callable[[Exception], bool] | None = None,
) -> Callable[[Callable[P, R]], ProcessStep[P, R]]: ...


@overload
def step(
    *,
    process: bool = False,
    name: str | None = None,
    retries: int = 0,
    backoff: Backoff = 1.0,
    backoff_factor: float = 2.0,
    max_backoff: Duration = 60.0,
    jitter: float = 0.5,
    timeout: Duration | None = None,
    speculative: bool = False,
    retry_on: RetryOn | None = None,
    retry_if: Callable[[Exception], bool] | None = None,
) -> Callable[[Callable[P, R]], Step[P, R]]: ...


def step(
    function: Callable[..., Any] | None = None,
    /,
    *,
    process: bool = False,
    name: str | None = None,
    retries: int = 0,
    backoff: Backoff = 1.0,
    backoff_factor: float = 2.0,
    max_backoff: Duration = 60.0,
    jitter: float = 0.5,
    timeout: Duration | None = None,
    speculative: bool = False,
    retry_on: RetryOn | None = None,
    retry_if: Callable[[Exception], bool] | None = None,
) -> Any:
    """Makes a step of a function, or of a method: `@step`, or `@step(retries=3)`.

    Args:
        function: The body, sync or async. It runs once in each attempt, and again if a crash comes before its
            outcome is recorded.
        process: Whether the body, which must be sync, runs in a child process. A crash of that process is a
            failed attempt. False by default. Async workflows call such a step by `await
            crunch.in_process(...)`.
        name: The recorded name, at most 255 bytes; by default the function's qualified name, without the
            module.
        retries: The maximum number of attempts after the first; 0 by default.
        backoff: The pause before the second attempt, as seconds or as a `timedelta`; 1 s by default. Each
            further pause is `backoff_factor` times longer. Or a list of the pauses, whose last one is
            repeated: `backoff=[1, 5, 30]`. Or a sync function that returns the pause for the number of the
            failed attempt, from 1: `backoff=lambda attempt: 5 * attempt`. The function is called when the
            step is defined, for at most 1,000 attempts; the last pause is repeated after them.
        backoff_factor: The factor by which each further pause grows, at least 1; 2 by default. With 1, all
            pauses are equal. Not allowed if `backoff` is a list or a function.
        max_backoff: The longest pause, as seconds or as a `timedelta`; 60 s by default. Longer pauses are
            shortened to it, but a list must have none.
        jitter: The share of a pause that is random, from 0 to 1. With 0.5, the default, a pause of 4 s
            becomes 2 to 4 s.
        timeout: The time limit of an attempt, as seconds or as a `timedelta`; no limit by default. A longer
            attempt fails with `TimeoutError`. An async body is cancelled, and a process is killed. A thread
            cannot be stopped: it continues after the timeout, and its result is dropped.
        speculative: Whether the body may run before the outcomes of earlier steps are durable. Use it for
            bodies without effects on the outside world. False by default.
        retry_on: The exception class, or a tuple of the classes, after which a further attempt is made:
            `retry_on=(ConnectionError, TimeoutError)`. All exceptions by default.
        retry_if: A sync function that returns whether a further attempt is made after an exception; None by
            default. Its argument is the exception with which the attempt has failed: an exception of the
            body, the `TimeoutError` of `timeout`, or `ProcessDied`. If `retry_on` is given too, both must
            allow the attempt. An exception that `retry_if` raises fails the step.

    Raises:
        InvalidArgument: The value is no function, or an option is out of its bounds.
    """

    bounds.check_flag("process", process)
    make = cast("Callable[..., Step[..., Any]]", ProcessStep if process else Step)

    def make_step(function: Callable[..., Any]) -> Step[..., Any]:
        return make(
            function,
            name=name,
            retries=retries,
            backoff=backoff,
            backoff_factor=backoff_factor,
            max_backoff=max_backoff,
            jitter=jitter,
            timeout=timeout,
            speculative=speculative,
            retry_on=retry_on,
            retry_if=retry_if,
        )

    return make_step if function is None else make_step(function)


__all__ = ["step"]
