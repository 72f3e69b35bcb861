"""The row of the inbox that an outbox writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from stepfast import _native
from stepfast._validation.text import short_repr
from stepfast.errors import InvalidArgument

#: The maximum size of encoded arguments, in bytes.
MAX_INPUT_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class InboxRow:
    """A start that becomes an execution when a worker takes it from the inbox.

    Attributes:
        key: The key of the execution, as 16 bytes.
        key_text: The key as text.
        workflow: The name of the workflow.
        fingerprint: The fingerprint of the arguments; None unless the caller has given a workflow_id.
        input: The encoded arguments.
        options: The options of the start, by name; see `CheckedOptions.values`.
    """

    key: bytes
    key_text: str
    workflow: str
    fingerprint: int | None
    input: bytes
    options: Mapping[str, Any]

    @property
    def workflow_id(self) -> str:
        """The workflow_id of the execution: the given one, or else the text of the key."""
        return self.options.get("workflow_id") or self.key_text


def message_row(
    workflow_id: str, value: Any, topic: str, message_id: str | None, keep: bool, shard: int
) -> InboxRow:
    """Returns the row that starts the built-in workflow that sends a message. See `Client.send` for the
    arguments.

    Raises:
        EncodeError: The value cannot be recorded.
        InvalidArgument: No message can have the topic or the id, or the value is too large.
    """
    workflow, key, key_text, encoded = _native.encode_message(
        workflow_id, value, topic, message_id, keep, shard
    )
    return InboxRow(key, key_text, workflow, None, encoded, {})


def inbox_row(
    workflow: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: Mapping[str, Any],
    signature: _native.Signature | None,
    shard: int,
) -> InboxRow:
    """Returns the row that starts a workflow.

    Args:
        workflow: The name of the workflow.
        args: The workflow's arguments by position.
        kwargs: The workflow's arguments by name.
        options: The options of the start, by name.
        signature: The parameters of the workflow; None if they are not known here.
        shard: The number of the store, 0 for a single store.

    Raises:
        TypeError: The workflow does not take these arguments.
        EncodeError: An argument cannot be recorded.
        InvalidArgument: The arguments are too large.
    """
    key, key_text, encoded, fingerprint = _native.encode_start(args, kwargs, shard, signature)
    if len(encoded) > MAX_INPUT_BYTES:
        raise InvalidArgument(
            f"the input of workflow {short_repr(workflow)} has {len(encoded)} bytes; an outbox takes at most "
            f"{MAX_INPUT_BYTES}: store large values elsewhere, and pass their location",
            "SF-0007",
        )
    compared = fingerprint if "workflow_id" in options else None
    return InboxRow(key, key_text, workflow, compared, encoded, options)
