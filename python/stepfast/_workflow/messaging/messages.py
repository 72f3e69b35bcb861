"""Messages in the code of workflows."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final, Literal, TypeAlias, cast

from stepfast import _native
from stepfast._runtime.branch import current_branch, current_code
from stepfast._runtime.waiting import await_or_wait
from stepfast._validation import bounds
from stepfast._validation.durations import Duration, to_timeout
from stepfast._workflow.messaging.in_step import call_in_step
from stepfast.errors import InvalidArgument

#: The topic of messages that are sent without one.
DEFAULT_TOPIC: Final = "default"

#: The effect of a call that sends a message: the execution has the message; a message with the same
#: `message_id` was sent before; or no execution has the workflow_id yet, and the message is kept.
Sent: TypeAlias = Literal["sent", "sent before", "kept"]


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
    seconds = to_timeout("timeout", timeout)
    branch = current_branch()
    if branch is None:
        raise InvalidArgument(
            "receive is called outside of the code of a workflow, such as in a step: receive in the "
            "workflow, and pass the value on"
        )
    call = branch.receive(topic, seconds)
    return await_or_wait(branch, call)


def send(workflow_id: str, value: Any, *, topic: str = DEFAULT_TOPIC, keep: bool = False) -> Awaitable[None]:
    """Sends a message to another execution from the code of a workflow or from the body of a step: `send(…)`
    in sync code, `await send(…)` in async code. Everywhere else use `engine.send`.

    When the call returns, the message is durable. A workflow sends the message once: a replay does not send
    it again. A body of a step may run again, for a retry or after a crash. Then its first message is not sent
    again, nor is its second one, and so on.

    Args:
        workflow_id: The workflow_id of the receiver.
        value: The value, of up to 64 KiB encoded.
        topic: The topic under which the receiver waits; `default` by default.
        keep: Whether the message is kept if no execution has the workflow_id yet. An execution with this id
            that is started later receives it. False by default.

    Returns:
        In async code an object to await. In sync code None.

    Raises:
        InvalidArgument: The caller is neither the code of a workflow nor the body of a step, or the step has
            `process=True`. Or no message can have the topic.
        NotFound: There is no such execution.
        ExecutionEnded: The execution has ended.
        EncodeError: The value cannot be recorded.
    """
    bounds.check_storable_text("workflow_id", workflow_id)
    bounds.check_name("topic", topic)
    bounds.check_flag("keep", keep)
    here = current_code.get()
    if here is None:
        raise InvalidArgument(
            "send is called outside of the code of a workflow: call engine.send or handle.send there"
        )
    if isinstance(here, tuple):
        return call_in_step(here, "send", _native.send_in_step, workflow_id, value, topic, keep)
    call = here.send(workflow_id, value, topic, keep)
    return cast("Awaitable[None]", await_or_wait(here, call))


__all__ = ["DEFAULT_TOPIC", "Sent", "receive", "send"]
