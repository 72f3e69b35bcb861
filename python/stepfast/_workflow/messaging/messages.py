"""Messages in the code of workflows."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final, cast

from stepfast._runtime.branch import current_branch
from stepfast._runtime.waiting import await_or_wait
from stepfast._validation import bounds
from stepfast._validation.durations import Duration, to_seconds
from stepfast.errors import InvalidArgument

#: The topic of messages that are sent without one.
DEFAULT_TOPIC: Final = "default"


def receive(topic: str = DEFAULT_TOPIC, *, timeout: Duration | None = None) -> Any:
    """Waits for the next message to this execution: `value = receive()` in sync code,
    `value = await receive()` in async code. Only the code of a workflow can receive.

    Each message is received once, in the order of sending. Several calls that wait for the same topic
    receive in the order in which they began. The wait is durable: while it lasts, the execution takes neither
    a thread nor memory after the engine's `suspend_after`.

    Args:
        topic: Only messages of this topic are received; `default` by default.
        timeout: The longest time to wait, as seconds or as a `timedelta`; no limit by default.

    Returns:
        In async code an object to await. In sync code the value of the message, or None after the timeout.

    Raises:
        InvalidArgument: The caller is not the code of a workflow, no message can have the topic, or the
            timeout is negative.
    """
    bounds.check_name("topic", topic)
    seconds = None if timeout is None else to_seconds("timeout", timeout, 0.0)
    branch = current_branch()
    if branch is None:
        raise InvalidArgument(
            "receive is called outside of the code of a workflow, such as in a step: receive in the "
            "workflow, and pass the value on"
        )
    call = branch.receive(topic, seconds)
    return await_or_wait(branch, call)


def send(workflow_id: str, value: Any, *, topic: str = DEFAULT_TOPIC) -> Awaitable[None]:
    """Sends a message to another execution from the code of a workflow: `send(…)` in sync code,
    `await send(…)` in async code. Everywhere else use `engine.send`.

    The message is sent once: a replay does not send it again. When the call returns, the message is durable.

    Args:
        workflow_id: The workflow_id of the receiver.
        value: The value, of up to 64 KiB encoded.
        topic: The topic under which the receiver waits; `default` by default.

    Returns:
        In async code an object to await. In sync code None.

    Raises:
        InvalidArgument: The caller is not the code of a workflow, or no message can have the topic.
        NotFound: There is no such execution.
        ExecutionEnded: The execution has ended.
        EncodeError: The value cannot be recorded.
    """
    bounds.check_storable_text("workflow_id", workflow_id)
    bounds.check_name("topic", topic)
    branch = current_branch()
    if branch is None:
        raise InvalidArgument(
            "send is called outside of the code of a workflow: call engine.send or handle.send there"
        )
    call = branch.send(workflow_id, value, topic)
    return cast("Awaitable[None]", await_or_wait(branch, call))


__all__ = ["DEFAULT_TOPIC", "receive", "send"]
