"""What an outbox puts into the inbox of the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stepfast import _native
from stepfast._validation.text import short_repr
from stepfast.errors import InvalidArgument

if TYPE_CHECKING:
    from stepfast._outbox.outbox import Place

#: The most bytes that the arguments may have.
LARGEST: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Letter:
    """An execution that is to be.

    Attributes:
        key: Its key, as 16 bytes.
        key_text: The same as text.
        workflow: The name of its workflow.
        fingerprint: Of its arguments, where it has an id of its caller's.
        input: Its arguments, encoded.
        place: What it is told besides.
    """

    key: bytes
    key_text: str
    workflow: str
    fingerprint: int | None
    input: bytes
    place: Place

    @property
    def workflow_id(self) -> str:
        """Its workflow_id."""
        return self.place.workflow_id or self.key_text


def letter_of(
    workflow: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    place: Place,
    signature: _native.Signature | None,
    shard: int,
) -> Letter:
    """The letter that starts a workflow with these arguments.

    Raises:
        TypeError: The function of the workflow does not take them.
        EncodeError: An argument cannot be recorded.
        InvalidArgument: Together they are too large.
    """
    key, key_text, encoded, fingerprint = _native.encode_start(args, kwargs, shard, signature)
    if len(encoded) > LARGEST:
        raise InvalidArgument(
            f"the input of workflow {short_repr(workflow)} has {len(encoded)} bytes; an outbox takes "
            f"{LARGEST}: keep large values elsewhere and pass on where",
            "SF-0007",
        )
    given = fingerprint if place.workflow_id is not None else None
    return Letter(key, key_text, workflow, given, encoded, place)
