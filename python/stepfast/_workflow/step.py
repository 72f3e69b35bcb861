"""Steps: functions whose outcome is recorded once."""

# the classes `Step` and `BoundStep` share their private parts
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine, Iterator
from threading import TIMEOUT_MAX
from typing import (
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    TypeVar,
    cast,
    final,
    overload,
)

from stepfast import _native
from stepfast._runtime.branch import (
    DONE,
    PENDING,
    RUN_BODY,
    current_branch,
    current_code,
)
from stepfast._runtime.exception_kinds import is_outcome
from stepfast._runtime.failures import fail_attempt
from stepfast._runtime.threads.time_limit import begin_in_thread, call_within, run_within
from stepfast._runtime.waiting import error_of
from stepfast._validation import bounds
from stepfast._validation.backoff import Backoff, to_pauses
from stepfast._validation.coroutine_function import CoroutineFunction
from stepfast._validation.durations import Duration, to_seconds, to_timeout
from stepfast._validation.names import qualified_name
from stepfast._validation.retry_rule import RetryOn, retry_rule
from stepfast._validation.signature import signature_of
from stepfast.errors import InvalidArgument

P = ParamSpec("P")
A = ParamSpec("A")
S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R", covariant=True)


@final
class Unmatchable:
    """A class that no program uses. A parameter accepts an instance only if it accepts values of any type."""


class Step(CoroutineFunction, Generic[P, R]):
    """A step function. A call in the code of a workflow records one outcome. Elsewhere a call is a plain call
    of the function, and nothing is recorded.

    Attributes:
        name: The name under which outcomes of the step are recorded.
    """

    __name__: str
    __qualname__: str
    __wrapped__: Callable[P, R]

    def __init__(
        self,
        function: Callable[P, R],
        *,
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
    ) -> None:
        bounds.check_function("step", function)
        bounds.check_step_options(name, retries, backoff_factor, jitter, speculative)
        limit = to_timeout("timeout", timeout)
        if limit == 0:
            raise InvalidArgument("timeout is 0, and no attempt can be that fast: leave it out for no limit")
        self.function = function
        self.__stepfast__ = True
        self.name: str = name or qualified_name(function)
        self.is_async: bool = inspect.iscoroutinefunction(function)
        #: The function that decides whether an exception may be retried; None if every exception may.
        self.retry_if: Callable[[Exception], bool] | None = retry_rule(retry_on, retry_if)
        # a timeout that is longer than threads can wait counts as no limit
        self.timeout: float | None = limit if limit is None or limit < TIMEOUT_MAX else None
        # the function whose result `awaitable_step` awaits; for a sync step it runs the body in a thread, as
        # `in_thread` needs it
        body: Callable[..., Any] = function
        if not self.is_async:
            body = functools.partial(asyncio.to_thread, begin_in_thread, cast("Any", function))
        if self.timeout is not None:
            body = functools.partial(call_within_limit, self.timeout, body)
        longest_pause = to_seconds("max_backoff", max_backoff, 0)
        first_pause, pauses = to_pauses(backoff, backoff_factor, longest_pause, retries)
        self.settings: _native.StepSettings = _native.StepSettings(
            self.name,
            retries,
            first_pause,
            backoff_factor,
            longest_pause,
            jitter,
            speculative,
            body,
            self.retry_if,
            signature_of(function),
            pauses,
        )
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        branch = current_code.get()
        if type(branch) is not _native.Branch:
            return self.function(*args, **kwargs)
        if self.is_async:
            # the same as in `_call_in_branch`, which is slower by one call: most steps take this way
            call: Any = branch.awaitable_step(self.settings, args, args, kwargs)
            if call is not None:
                return call  # type: ignore[no-any-return]
        return self._call_in_branch(branch, args, args, kwargs)  # type: ignore[no-any-return]

    def _call_in_branch(
        self,
        branch: _native.Branch,
        recorded: tuple[Any, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Calls the step in a workflow. The `recorded` arguments identify the call in a replay."""
        if self.is_async:
            awaitable = branch.awaitable_step(self.settings, recorded, args, kwargs)
            if awaitable is None:
                raise self._misplaced_error()
            return awaitable
        if branch.is_on_loop and branch.is_own_thread:
            raise self._misplaced_error()
        call = branch.step(self.settings, recorded, kwargs, len(args) - len(recorded))
        return run_in_this_thread(call, branch, self, args, kwargs)

    def in_thread(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, R]:
        """Calls this sync step with its body in a thread, so that the event loop is not blocked. For async
        code, which awaits the returned awaitable.

        Raises:
            InvalidArgument: The step is async, or the caller is the code of a sync workflow.
            Exception: The exception that the body has raised.
        """
        return self._in_thread(args, args, kwargs)

    def _in_thread(
        self, recorded: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Coroutine[object, None, R]:
        if self.is_async:
            raise InvalidArgument(
                f"step {self.name!r} is async: call it without in_thread, and await the call"
            )
        branch = current_branch()
        if branch is None:
            return asyncio.to_thread(self.function, *args, **kwargs)
        if not branch.is_on_loop:
            raise InvalidArgument(
                f"step {self.name!r} is called from a sync workflow: call it without in_thread"
            )
        return cast(
            "Coroutine[object, None, R]", branch.awaitable_step(self.settings, recorded, args, kwargs)
        )

    # Type checkers drop @classmethod and @staticmethod above a decorated function. So only the type of the
    # first parameter shows the kind of method: a `type`, the instance, or neither. A first parameter of any
    # type does not show the kind. `self` is annotated as a Callable, because mypy infers the first parameter
    # only of a Callable.
    @overload
    def __get__(  # type: ignore[misc]
        self: Callable[Concatenate[Unmatchable, A], R], instance: object, owner: type
    ) -> Step[..., Any]: ...

    @overload
    def __get__(  # type: ignore[misc]
        self: Callable[Concatenate[type[T], A], R], instance: T | None, owner: type[T]
    ) -> BoundStep[A, R]: ...

    @overload
    def __get__(self, instance: None, owner: type) -> Step[P, R]: ...

    @overload
    def __get__(self: Callable[Concatenate[S, A], R], instance: S, owner: type) -> BoundStep[A, R]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> Step[P, R]: ...

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else BoundStep(self, instance)

    def _misplaced_error(self) -> InvalidArgument:
        if self.is_async:
            return InvalidArgument(
                f"step {self.name!r} is async, but the workflow is not: make the workflow async, or the step "
                "sync"
            )
        return InvalidArgument(
            f"step {self.name!r} is sync, and would block the event loop of an async workflow: make it "
            f"async, or write await {self.function.__name__}.in_thread(...)"
        )

    def _returns_coroutine(self) -> bool:
        return self.is_async

    def __repr__(self) -> str:
        return f"<step {self.name}>"

    def __rich_repr__(self) -> Iterator[Any]:
        yield self.name


class BoundStep(CoroutineFunction, Generic[P, R]):
    """A step that is a method, with the object to which it is bound. The object is not recorded. In a replay
    it may be another object, because the replay uses the recorded outcome of the step."""

    def __init__(self, step: Step[..., R], instance: object) -> None:
        self.step: Step[..., R] = step
        self.instance: object = instance

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        branch = current_code.get()
        if type(branch) is not _native.Branch:
            return self.step.function(self.instance, *args, **kwargs)
        return self.step._call_in_branch(branch, args, (self.instance, *args), kwargs)  # type: ignore[no-any-return]

    def in_thread(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, R]:
        """See `Step.in_thread`."""
        return self.step._in_thread(args, (self.instance, *args), kwargs)

    def _returns_coroutine(self) -> bool:
        return self.step.is_async

    def __repr__(self) -> str:
        return f"<step {self.step.name} of {self.instance!r}>"


async def call_within_limit(
    timeout: float, function: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Calls the async body of a step, and awaits it for at most `timeout` seconds."""
    return await run_within(timeout, function(*args, **kwargs))


def run_in_this_thread(
    call: _native.Call,
    branch: _native.Branch,
    step: Step[Any, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Runs a step in this thread: waits for its turn, runs its attempts, and returns its value or raises its
    error."""
    value: Any = None
    error: BaseException | None = None
    is_run = False
    try:
        state = call.poll()
        while True:
            if state == DONE:
                return value if is_run else call.take_value()
            if state == RUN_BODY:
                if not call.can_begin:
                    # the run was stopped while this thread waited for the interpreter
                    state = call.wait()
                    continue
                token = current_code.set((branch, call, step.name, call.attempt))
                try:
                    if step.timeout is None:
                        value = step.function(*args, **kwargs)
                    else:
                        value = call_within(step.timeout, step.function, args, kwargs)
                    state = call.succeed(value)
                    is_run = True
                except BaseException as raised:
                    if not is_outcome(raised):
                        raise
                    error = raised
                    state = fail_attempt(call, step.name, raised, step.retry_if)
                finally:
                    current_code.reset(token)
            elif state == PENDING:
                state = call.wait()
            else:
                raise error_of(call, state, error)
    except (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError):
        # the program ends: the code unwinds, and the run records nothing more
        branch.defer()
        raise
    finally:
        call.close()
        # the traceback of the error refers to this frame, which would make a reference cycle
        del error


__all__ = ["BoundStep", "Step"]
