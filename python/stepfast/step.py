"""Steps: functions whose outcome is recorded once."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, cast, overload

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
from stepfast.errors import Cancelled, Invalid, Suspended
from stepfast.failure import failure_of, raised_again

if TYPE_CHECKING:
    from stepfast.processes import ProcessStep

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
        if self.is_async != branch.is_on_loop:
            raise self._misplaced()
        call = branch.step(self.settings, args, kwargs)
        step = cast("Step[..., Any]", self)
        if self.is_async:
            return cast("R", carry_out(call, branch, step, args, kwargs))
        return cast("R", carry_out_here(call, branch, step, args, kwargs))

    def in_thread(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """For async code: the step, if it is a sync one, with its body in a thread, so that the loop goes
        on meanwhile."""
        if self.is_async:
            raise Invalid(f"step {self.name!r} is async: call it as it is, and await it")
        branch = branch_var.get()
        if branch is None:
            return asyncio.to_thread(self.function, *args, **kwargs)
        if not branch.is_on_loop:
            raise Invalid(f"step {self.name!r} is called from a sync workflow: call it as it is")
        call = branch.step(self.settings, args, kwargs)
        return carry_out(call, branch, cast("Step[..., Any]", self), args, kwargs)

    def _misplaced(self) -> Invalid:
        if self.is_async:
            return Invalid(
                f"step {self.name!r} is async, but the workflow is not: make the workflow async, or the step "
                "sync"
            )
        return Invalid(
            f"step {self.name!r} is sync, and would block the event loop of an async workflow: make it "
            f"async, or write await {self.function.__name__}.in_thread(...)"
        )

    def __repr__(self) -> str:
        return f"<step {self.name}>"


async def carry_out(
    call: _native.Call,
    branch: _native.Branch,
    step: Step[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Carries the call of a step out in a task of the loop; the body of a sync one runs in a thread."""
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
                    if step.is_async:
                        body = step.function(*args, **kwargs)
                    else:
                        body = asyncio.to_thread(step.function, *args, **kwargs)
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
    call: _native.Call,
    branch: _native.Branch,
    step: Step[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
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
    except (Exception, Suspended, Cancelled):
        raise
    except BaseException:
        # the program is told to end: the call is not given up, but made again elsewhere
        branch.hand_back()
        raise
    finally:
        call.close()


def over(call: _native.Call, turn: int, error: BaseException | None = None) -> BaseException:
    """The exception that a call which has not gone well ends with."""
    if turn == STOPPED:
        return unwinding(call.stopped)
    if turn == FAILED:
        again = raised_again(call.failure())
        # what a replay cannot raise, the first run must not: handlers would part ways
        return error if error is not None and type(error) is type(again) else again
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
    """Makes a step of a function.

    Args:
        process: the body, which is sync, runs in a child process: a crash there is a failed attempt. Async
            workflows call such a step by `await crunch.in_process(...)`.
        name: what is recorded; the function's qualified name by default.
        retries: attempts after a failed one.
        backoff: seconds before the second attempt; each further pause is `factor` times longer.
        factor: see `backoff`.
        max_backoff: longest pause, in seconds.
        jitter: share of a pause that is random, 0 to 1.
        timeout: longest an attempt may take, in seconds; no limit by default. It then fails with
            `TimeoutError`. An async body is cancelled; a thread cannot be stopped: it goes on, and what it
            comes to is dropped. A process is killed.
        speculative: the body may run before the outcomes of earlier steps are durable.
        retry_if: tells which exceptions are worth another attempt; all by default.
    """

    made_of: Callable[..., Step[..., Any]] = Step
    if process:
        from stepfast.processes import ProcessStep as made_of

    def made(function: Callable[..., Any]) -> Step[..., Any]:
        return made_of(
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
