"""`ProcessStep`: a step whose body runs in a child process."""

# the classes and functions of this module share their private parts
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from stepfast import _native
from stepfast._processes.attempt import ProcessAttempt
from stepfast._processes.step_location import StepLocation, process_steps, step_location
from stepfast._runtime.branch import DONE, FAILED, PENDING, RUN_BODY, current_branch
from stepfast._runtime.event_loop.tasks import state_after_cancellation
from stepfast._runtime.waiting import error_of
from stepfast._values import EncodeError
from stepfast._values.arguments import encode_arguments
from stepfast._workflow.step import BoundStep, Step, Unmatchable
from stepfast.errors import InvalidArgument

P = ParamSpec("P")
A = ParamSpec("A")
S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R", covariant=True)


class ProcessStep(Step[P, R]):
    """A step whose body runs in a child process, made by `@step(process=True)`.

    Sync workflows call it directly; async workflows write `await crunch.in_process(...)`. Outside of a
    workflow the call is a plain call of the function.
    """

    def __init__(self, function: Callable[P, R], **options: Any) -> None:
        super().__init__(function, **options)
        if self.is_async:
            raise InvalidArgument(
                f"step {self.name!r} is async, and process=True is for sync functions: make it sync, or "
                "leave process=True out"
            )
        self.location: StepLocation = step_location(self.name, function)
        process_steps[self.location] = self

    def _call_in_branch(
        self,
        branch: _native.Branch,
        recorded: tuple[Any, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if branch.is_on_loop:
            raise self._misplaced_error()
        call = branch.step(self.settings, recorded, kwargs, len(args) - len(recorded))
        return wait_for_process_step(call, branch, self, args, kwargs)

    def in_process(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, R]:
        """Runs the step in a child process, and returns an awaitable of its value. For async code, because
        the wait does not block the event loop.

        Raises:
            InvalidArgument: The caller is a sync workflow: call the step directly.
            EncodeError: An argument cannot be encoded. Arguments go to the process in the encoding of
                recorded values.
            ProcessDied: In the last attempt, the process ended before the body had returned.
            Exception: The exception that the body has raised.
        """
        return self._in_process(args, args, kwargs)

    def _in_process(
        self, recorded: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Coroutine[object, None, R]:
        branch = current_branch()
        if branch is None:
            return asyncio.to_thread(self.function, *args, **kwargs)
        if not branch.is_on_loop:
            raise InvalidArgument(
                f"step {self.name!r} is called from a sync workflow: call it without in_process"
            )
        call = branch.step(self.settings, recorded, kwargs, len(args) - len(recorded))
        return await_process_step(call, branch, self, args, kwargs)

    def _in_thread(
        self, recorded: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Coroutine[object, None, R]:
        raise self._misplaced_error()

    # the same overloads as those of Step
    @overload
    def __get__(  # type: ignore[misc]
        self: Callable[Concatenate[Unmatchable, A], R], instance: object, owner: type
    ) -> Step[..., Any]: ...

    @overload
    def __get__(  # type: ignore[misc]
        self: Callable[Concatenate[type[T], A], R], instance: T | None, owner: type[T]
    ) -> BoundProcessStep[A, R]: ...

    @overload
    def __get__(self, instance: None, owner: type) -> ProcessStep[P, R]: ...

    @overload
    def __get__(self: Callable[Concatenate[S, A], R], instance: S, owner: type) -> BoundProcessStep[A, R]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> ProcessStep[P, R]: ...

    def __get__(self, instance: object, owner: type | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] # it binds as Step does
        return self if instance is None else BoundProcessStep(self, instance)

    def _misplaced_error(self) -> InvalidArgument:
        return InvalidArgument(
            f"step {self.name!r} runs in a process, and waiting for it would block the event loop of an "
            f"async workflow: write await {self.function.__name__}.in_process(...)"
        )


class BoundProcessStep(BoundStep[P, R]):
    """A process step that is a method, with the object to which it is bound.

    The object is not recorded, but is sent to the child process with the arguments.
    """

    def __init__(self, step: ProcessStep[..., R], instance: object) -> None:
        super().__init__(step, instance)
        self._process_step = step

    def in_process(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, R]:
        """See `ProcessStep.in_process`."""
        return self._process_step._in_process(args, (self.instance, *args), kwargs)


async def await_process_step(
    call: _native.Call,
    branch: _native.Branch,
    step: ProcessStep[Any, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Runs a process step. Waits in the calling task for its value."""
    attempt: ProcessAttempt | None = None
    try:
        await call
        while (state := call.state) in (PENDING, RUN_BODY):
            if state == RUN_BODY:
                attempt = begin_attempt(call, branch, step, args, kwargs)
            await call
        if state != DONE:
            raise error_of(call, state, None if attempt is None else attempt.error)
        return call.take_value()
    except asyncio.CancelledError:
        state = state_after_cancellation(call, branch)
        if state == DONE:
            return call.take_value()
        if state == FAILED:
            raise error_of(call, state, None if attempt is None else attempt.error) from None
        raise
    finally:
        call.close()
        if attempt is not None:
            attempt.abandon()


def wait_for_process_step(
    call: _native.Call,
    branch: _native.Branch,
    step: ProcessStep[Any, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Runs a process step. Waits in this thread for its value."""
    attempt: ProcessAttempt | None = None
    try:
        state = call.poll()
        while state in (PENDING, RUN_BODY):
            if state == RUN_BODY:
                attempt = begin_attempt(call, branch, step, args, kwargs)
            state = call.wait()
        if state != DONE:
            raise error_of(call, state, None if attempt is None else attempt.error)
        return call.take_value()
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        # the program ends: the code unwinds, and the run records nothing more
        branch.defer()
        raise
    finally:
        call.close()
        if attempt is not None:
            attempt.abandon()


def begin_attempt(
    call: _native.Call,
    branch: _native.Branch,
    step: ProcessStep[Any, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> ProcessAttempt:
    """Begins an attempt. Its outcome wakes the code that waits for `call`."""
    attempt = ProcessAttempt(call, step, branch)
    try:
        if process_steps[step.location] is not step:
            raise InvalidArgument(
                f"another step has taken the place of {step.name!r} in module {step.location.module}: give "
                "one of the functions another name, or import it again after a reload"
            )
        attempt.arguments = encode_step_arguments(args, kwargs)
    except (EncodeError, InvalidArgument) as error:
        attempt.fail(error, is_final=True)
    else:
        branch.host.processes.begin(attempt)
    return attempt


def encode_step_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Encodes the arguments for the child process, as recorded values are encoded.

    Raises:
        EncodeError: An argument cannot be recorded.
    """
    try:
        return encode_arguments(args, kwargs)
    except EncodeError as error:
        raise EncodeError(
            f"it runs in a child process, and its arguments must be recordable: {error}",
            path=error.path,
            type_name=error.type_name,
        ) from None


__all__ = ["BoundProcessStep", "ProcessStep"]
