"""`ProcessStep`: a step whose body runs in a child process."""

# what is here belongs together
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from stepfast import _native
from stepfast._processes.attempt import Attempt
from stepfast._processes.step_location import Place, place_of, steps
from stepfast._runtime.branch import BODY, DONE, FAILED, PENDING, branch_here
from stepfast._runtime.event_loop.tasks import cancelled
from stepfast._runtime.waiting import error_of
from stepfast._values import EncodeError
from stepfast._values.arguments import encode_arguments
from stepfast._workflow.step import BoundStep, Nobody, Step
from stepfast.errors import Invalid

P = ParamSpec("P")
A = ParamSpec("A")
S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R", covariant=True)


class ProcessStep(Step[P, R]):
    """A step whose body runs in a child process, made by `@step(process=True)`. Sync workflows call it as it
    is, async ones write `await crunch.in_process(...)`. Outside of a workflow it is a plain call."""

    def __init__(self, function: Callable[P, R], **options: Any) -> None:
        super().__init__(function, **options)
        if self.is_async:
            raise Invalid(
                f"step {self.name!r} is async, and process=True is for sync functions: make it sync, or "
                "leave process=True out"
            )
        self.place: Place = place_of(self.name, function)
        steps[self.place] = self

    def _carried(
        self,
        branch: _native.Branch,
        recorded: tuple[Any, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if branch.is_on_loop:
            raise self._misplaced()
        call = branch.step(self.settings, recorded, kwargs, len(args) - len(recorded))
        return carry_out_here(call, branch, self, args, kwargs)

    def in_process(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, R]:
        """For async code: the step, to be awaited; the loop goes on meanwhile.

        Raises:
            Invalid: This is the code of a sync workflow: call the step as it is.
            EncodeError: An argument, which goes to the process as values are recorded, cannot be.
            ProcessDied: The process ended before the body had returned, in the last attempt too.
            Exception: What the body has raised.
        """
        return self._in_process(args, args, kwargs)

    def _in_process(
        self, recorded: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Coroutine[object, None, R]:
        branch = branch_here()
        if branch is None:
            return asyncio.to_thread(self.function, *args, **kwargs)
        if not branch.is_on_loop:
            raise Invalid(f"step {self.name!r} is called from a sync workflow: call it as it is")
        call = branch.step(self.settings, recorded, kwargs, len(args) - len(recorded))
        return carry_out(call, branch, self, args, kwargs)

    def _in_thread(
        self, recorded: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Coroutine[object, None, R]:
        raise self._misplaced()

    # as those of Step
    @overload
    def __get__(  # type: ignore[misc]
        self: Callable[Concatenate[Nobody, A], R], instance: object, owner: type
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

    def _misplaced(self) -> Invalid:
        return Invalid(
            f"step {self.name!r} runs in a process, and waiting for it would block the event loop of an "
            f"async workflow: write await {self.function.__name__}.in_process(...)"
        )


class BoundProcessStep(BoundStep[P, R]):
    """A process step that is a method, with the object that it is called on. That is not recorded, but goes
    to the process as the arguments do."""

    def __init__(self, step: ProcessStep[..., R], instance: object) -> None:
        super().__init__(step, instance)
        self._process_step = step

    def in_process(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, R]:
        """See `ProcessStep.in_process`."""
        return self._process_step._in_process(args, (self.instance, *args), kwargs)


async def carry_out(
    call: _native.Call,
    branch: _native.Branch,
    step: ProcessStep[Any, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Carries the call of a step out in a task of the loop."""
    attempt: Attempt | None = None
    try:
        await call
        while (turn := call.turn) in (PENDING, BODY):
            if turn == BODY:
                attempt = begun(call, branch, step, args, kwargs)
            await call
        if turn != DONE:
            raise error_of(call, turn, None if attempt is None else attempt.error)
        return call.value()
    except asyncio.CancelledError:
        turn = cancelled(call, branch)
        if turn == DONE:
            return call.value()
        if turn == FAILED:
            raise error_of(call, turn, None if attempt is None else attempt.error) from None
        raise
    finally:
        call.close()
        if attempt is not None:
            attempt.give_up()


def carry_out_here(
    call: _native.Call,
    branch: _native.Branch,
    step: ProcessStep[Any, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Carries the call of a step out in this thread."""
    attempt: Attempt | None = None
    try:
        turn = call.poll()
        while turn in (PENDING, BODY):
            if turn == BODY:
                attempt = begun(call, branch, step, args, kwargs)
            turn = call.wait()
        if turn != DONE:
            raise error_of(call, turn, None if attempt is None else attempt.error)
        return call.value()
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        # the program is told to end: nothing more is recorded of the code, which unwinds
        branch.put_off()
        raise
    finally:
        call.close()
        if attempt is not None:
            attempt.give_up()


def begun(
    call: _native.Call,
    branch: _native.Branch,
    step: ProcessStep[Any, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Attempt:
    """An attempt, whose outcome wakes whoever waits for `call`."""
    attempt = Attempt(call, step, (branch.workflow_id, branch.workflow, call.path))
    try:
        if steps[step.place] is not step:
            raise Invalid(
                f"another step has taken the place of {step.name!r} in module {step.place.module}: give one "
                "of the functions another name, or import it again after a reload"
            )
        attempt.arguments = encoded(args, kwargs)
    except (EncodeError, Invalid) as error:
        attempt.fail(error, is_final=True)
    else:
        branch.home.processes.begin(attempt)
    return attempt


def encoded(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """The arguments as they go to the child: encoded like recorded values.

    Raises:
        EncodeError: One of them cannot be recorded.
    """
    try:
        return encode_arguments(args, kwargs)
    except EncodeError as error:
        raise EncodeError(
            f"it runs in a process, where its arguments go as values are recorded: {error}",
            path=error.path,
            type_name=error.type_name,
        ) from None


__all__ = ["BoundProcessStep", "ProcessStep"]
