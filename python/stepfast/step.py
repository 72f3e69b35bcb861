"""Steps: functions whose outcome is recorded once."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

from stepfast import _native
from stepfast.attempt import within, within_thread
from stepfast.branch import (
    BODY,
    DONE,
    ERROR,
    FAILED,
    PENDING,
    STOPPED,
    branch_var,
    unwinding,
)
from stepfast.failure import failure_of, raised_again

P = ParamSpec("P")
R = TypeVar("R")


class Step(Generic[P, R]):
    """A step function. Called in a workflow, its outcome is recorded once; elsewhere it is a plain call."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None,
        retries: int,
        backoff: float,
        factor: float,
        max_backoff: float,
        jitter: float,
        timeout: float | None,
        speculative: bool,
        retry_if: Callable[[Exception], bool] | None,
    ) -> None:
        self.function = function
        self.name = name or function.__qualname__
        self.is_async = inspect.iscoroutinefunction(function)
        self.retry_if = retry_if
        self.timeout = timeout
        self.settings = _native.StepSettings(
            self.name, retries, backoff, factor, max_backoff, jitter, speculative
        )
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        branch = branch_var.get()
        if branch is None:
            return self.function(*args, **kwargs)
        call = branch.step(self.settings, args, kwargs)
        if self.is_async:
            return cast("R", carry_out(call, branch, cast("Step[..., Any]", self), args, kwargs))
        return cast("R", carry_out_here(call, cast("Step[..., Any]", self), args, kwargs))

    def __repr__(self) -> str:
        return f"<step {self.name}>"


async def carry_out(
    call: _native.Call,
    branch: _native.Branch,
    step: Step[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Carries the call of an async step out, in a task of the loop."""
    value: Any = None
    error: Exception | None = None
    is_run = False
    try:
        await call
        turn = call.turn
        while True:
            if turn == DONE:
                return value if is_run else call.value()
            if turn == BODY:
                token = branch_var.set(None)
                try:
                    body = step.function(*args, **kwargs)
                    value = await (body if step.timeout is None else within(step.timeout, body))
                    turn = call.succeed(value)
                    is_run = True
                except Exception as raised:
                    error = raised
                    turn = call.fail(failure_of(raised, step.retry_if))
                finally:
                    branch_var.reset(token)
            elif turn == PENDING:
                await call
                turn = call.turn
            else:
                raise over(call, turn, error)
    except asyncio.CancelledError:
        if branch.is_inline:
            # the caller is cancelled, not the execution: its code unwinds, and it goes on elsewhere
            branch.hand_back()
            raise unwinding(1) from None
        raise
    finally:
        call.close()


def carry_out_here(
    call: _native.Call, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Carries the call of a step out in this thread."""
    value: Any = None
    error: Exception | None = None
    is_run = False
    try:
        turn = call.poll()
        while True:
            if turn == DONE:
                return value if is_run else call.value()
            if turn == BODY:
                token = branch_var.set(None)
                try:
                    if step.timeout is None:
                        value = step.function(*args, **kwargs)
                    else:
                        value = within_thread(step.timeout, step.function, args, kwargs)
                    turn = call.succeed(value)
                    is_run = True
                except Exception as raised:
                    error = raised
                    turn = call.fail(failure_of(raised, step.retry_if))
                finally:
                    branch_var.reset(token)
            elif turn == PENDING:
                turn = call.wait()
            else:
                raise over(call, turn, error)
    finally:
        call.close()


def over(call: _native.Call, turn: int, error: Exception | None) -> BaseException:
    """The exception that a call which has not gone well ends with."""
    if turn == STOPPED:
        return unwinding(call.stopped)
    if turn == FAILED:
        return error if error is not None else raised_again(call.failure())
    assert turn == ERROR
    try:
        call.raise_error()
    except BaseException as raised:
        return raised
    raise AssertionError("an error that is none")


@overload
def step(function: Callable[P, R], /) -> Step[P, R]: ...


@overload
def step(
    *,
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
    """Makes a step of a function.

    Args:
        name: what is recorded; the function's qualified name by default.
        retries: attempts after a failed one.
        backoff: seconds before the second attempt; each further pause is `factor` times longer.
        factor: see `backoff`.
        max_backoff: longest pause, in seconds.
        jitter: share of a pause that is random, 0 to 1.
        timeout: longest an attempt may take, in seconds; no limit by default. It then fails with
            `TimeoutError`. An async body is cancelled; a thread cannot be stopped: it goes on, and what it
            comes to is dropped.
        speculative: the body may run before the outcomes of earlier steps are durable.
        retry_if: tells which exceptions are worth another attempt; all by default.
    """

    def made(function: Callable[..., Any]) -> Step[..., Any]:
        return Step(
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


__all__ = ["Step", "step"]
