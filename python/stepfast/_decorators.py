"""Decorators that depend on every kind of step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, ParamSpec, TypeVar, cast, overload

from stepfast._processes import ProcessStep
from stepfast._validation import bounds
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
    backoff: float = 1.0,
    factor: float = 2.0,
    max_backoff: float = 60.0,
    jitter: float = 0.5,
    timeout: float | None = None,
    speculative: bool = False,
    retry_if: Callable[[Exception], bool] | None = None,
) -> Callable[[Callable[P, R]], ProcessStep[P, R]]: ...


@overload
def step(
    *,
    process: bool = False,
    name: str | None = None,
    retries: int = 0,
    backoff: float = 1.0,
    factor: float = 2.0,
    max_backoff: float = 60.0,
    jitter: float = 0.5,
    timeout: float | None = None,
    speculative: bool = False,
    retry_if: Callable[[Exception], bool] | None = None,
) -> Callable[[Callable[P, R]], Step[P, R]]: ...


def step(
    function: Callable[..., Any] | None = None,
    /,
    *,
    process: bool = False,
    name: str | None = None,
    retries: int = 0,
    backoff: float = 1.0,
    factor: float = 2.0,
    max_backoff: float = 60.0,
    jitter: float = 0.5,
    timeout: float | None = None,
    speculative: bool = False,
    retry_if: Callable[[Exception], bool] | None = None,
) -> Any:
    """Makes a step of a function, or of a method: `@step`, or `@step(retries=3)`.

    Args:
        function: The body: sync or async. It may run more than once, if a crash comes before its outcome is
            recorded, and in each further attempt.
        process: The body, which is sync, runs in a child process: a crash there is a failed attempt. Async
            workflows call such a step by `await crunch.in_process(...)`.
        name: What is recorded, at most 255 bytes; the function's qualified name by default.
        retries: Attempts after a failed one.
        backoff: Pause before the second attempt, in seconds; each further pause is `factor` times longer.
        factor: How much longer, at least 1.
        max_backoff: Longest pause, in seconds.
        jitter: Share of a pause that is random, from 0 to 1: with 0.5 one of 4 s becomes 2 to 4 s.
        timeout: Longest an attempt may take, in seconds; no limit by default. It then fails with
            `TimeoutError`. An async body is cancelled; a thread cannot be stopped: it goes on, and what it
            comes to is dropped. A process is killed.
        speculative: The body may run before the outcomes of earlier steps are durable: for bodies without
            effects outside.
        retry_if: Called with the exception that an attempt has failed with (the body's own, `TimeoutError` by
            `timeout`, `ProcessDied`), tells whether it is worth another attempt; all are by default. If it
            raises one itself, the step fails with that.

    Raises:
        InvalidArgument: It is no function, or an option is out of its bounds.
    """

    bounds.check_flag("process", process)
    make = cast("Callable[..., Step[..., Any]]", ProcessStep if process else Step)

    def made(function: Callable[..., Any]) -> Step[..., Any]:
        return make(
            function,
            name=name,
            retries=retries,
            backoff=backoff,
            factor=factor,
            max_backoff=max_backoff,
            jitter=jitter,
            timeout=timeout,
            speculative=speculative,
            retry_if=retry_if,
        )

    return made if function is None else made(function)


__all__ = ["step"]
