"""Events in the code of workflows."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, cast

from stepfast._runtime.branch import current_branch
from stepfast._runtime.waiting import await_or_wait
from stepfast._validation import bounds
from stepfast._validation.durations import Duration, to_timeout
from stepfast.errors import InvalidArgument


def set_event(name: str, value: Any) -> Awaitable[None]:
    """Sets an event of this execution: `set_event(…)` in sync code, `await set_event(…)` in async code. Only
    the code of a workflow can set events.

    Everyone can read the value by `engine.get_event`, while the execution runs and after its end. A later
    value of the same name replaces the value; `engine.events` returns both. A replay does not set the event
    again. The event is durable before the next step begins.

    Args:
        name: The name of the event, at most 255 bytes.
        value: The value.

    Returns:
        In async code an object to await. In sync code None.

    Raises:
        InvalidArgument: The caller is not the code of a workflow, or no event can have the name.
        EncodeError: The value cannot be recorded.
    """
    bounds.check_name("event", name)
    branch = current_branch()
    if branch is None:
        raise InvalidArgument(
            "set_event is called outside of the code of a workflow: a step returns a value, and its workflow "
            "sets the event"
        )
    call = branch.set_event(name, value)
    return cast("Awaitable[None]", await_or_wait(branch, call))


def get_event(workflow_id: str, name: str, *, timeout: Duration | None = None) -> Any:
    """Waits in the code of a workflow until another execution has set an event: `value = get_event(…)` in
    sync code, `value = await get_event(…)` in async code. Everywhere else use `engine.get_event`.

    If the event was set several times, the call returns the value that was set last. The value is recorded,
    so a replay returns the same one. The wait is durable: while it lasts, the execution takes neither a
    thread nor memory after the engine's `suspend_after`.

    Args:
        workflow_id: The workflow_id of the other execution.
        name: The name of the event.
        timeout: The longest time to wait, as seconds or as a `timedelta`; no limit by default.

    Returns:
        In async code an object to await. In sync code the value of the event, or None after the timeout.

    Raises:
        InvalidArgument: The caller is not the code of a workflow, no event can have the name, or the timeout
            is negative.
        NotFound: There is no such execution.
        ExecutionEnded: The execution has ended, and has not set the event.
    """
    bounds.check_storable_text("workflow_id", workflow_id)
    bounds.check_name("event", name)
    seconds = to_timeout("timeout", timeout)
    branch = current_branch()
    if branch is None:
        raise InvalidArgument(
            "get_event is called outside of the code of a workflow: call engine.get_event there"
        )
    call = branch.get_event(workflow_id, name, seconds)
    return await_or_wait(branch, call)


__all__ = ["get_event", "set_event"]
