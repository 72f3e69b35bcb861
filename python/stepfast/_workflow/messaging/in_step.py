"""Calls in the bodies of steps: messages and values of streams."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from stepfast import _native
from stepfast._runtime.branch import StepBody, unwind_exception
from stepfast._runtime.waiting import wait_for_call
from stepfast.errors import InvalidArgument


def call_in_step(
    body: StepBody, name: str, native: Callable[..., _native.Call | None], *args: Any
) -> Awaitable[None]:
    """Makes a call in the body of a step.

    Args:
        body: The body.
        name: The name of the call, for errors.
        native: The native function. It takes the branch, the call of the step, the number of the attempt, the
            arguments, and whether the body runs on the event loop. It returns None if the attempt has ended.
        args: The arguments of the call.

    Returns:
        In async code an object to await. In sync code None.

    Raises:
        InvalidArgument: The body runs in a process, or the attempt has ended.
    """
    branch, step_call, step, attempt = body
    if type(branch) is not _native.Branch:
        raise InvalidArgument(
            f"{name} is called in step {step!r}, whose body runs in a process: return the values from "
            f"the step and call {name} in the workflow, or in a step without process=True"
        )
    # the body of a sync step runs in a thread, also if its workflow is async
    is_on_loop = branch.is_on_loop and branch.is_own_thread
    call = native(branch, step_call, attempt or 0, *args, is_on_loop)
    if call is not None:
        return cast("Awaitable[None]", call if is_on_loop else wait_for_call(call))
    if step_call.stop_code:
        raise unwind_exception(step_call.stop_code)
    raise InvalidArgument(
        f"{name} is called after attempt {attempt} of step {step!r} has ended: wait in the body of the step "
        f"for the tasks and threads that call {name}"
    )


__all__ = ["call_in_step"]
