"""The values of streams, for programs that read them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from stepfast import _native
from stepfast._engine.records import readable
from stepfast._runtime.waiting import wait_for_call
from stepfast._validation import bounds
from stepfast._validation.times import to_datetime

if TYPE_CHECKING:
    from stepfast._engine.open_engine import OpenEngine


@dataclass(frozen=True, slots=True)
class StreamValue:
    """A value of a stream, as `read_stream` yields it.

    Attributes:
        offset: The place of the value in its stream, from 0. A later call of `read_stream` continues with
            `offset + 1`.
        value: The value; a `DecodeError` if this program cannot read it.
        written_at: The time at which the value was written.
        step: The position of the step that wrote the value, such as `3` or `2.1`; None for a value that the
            code of the workflow wrote.
        attempt_offset: The offset of the first value that the same attempt of the step wrote to the stream.
            If a reader has values of this step with another `attempt_offset`, it discards them: that attempt
            failed, or its process died. Equal to `offset` if the code of the workflow wrote the value.
    """

    offset: int
    value: Any
    written_at: datetime
    step: str | None
    attempt_offset: int


def check_reading(stream: str, offset: int) -> None:
    """Checks the arguments of `read_stream`."""
    bounds.check_name("stream", stream)
    bounds.check_count("offset", offset, 0, bounds.MAX_OFFSET)


def stream_values(reader: _native.StreamReader, open_engine: OpenEngine) -> Iterator[StreamValue]:
    """Yields the values of a stream, each when it is durable.

    Args:
        reader: The reader of the stream.
        open_engine: The engine, which this iterator keeps alive.
    """
    while page := wait_for_call(reader.next_page(None)):
        yield from map(_value_of, page)


async def stream_values_async(
    reader: _native.StreamReader, open_engine: OpenEngine
) -> AsyncIterator[StreamValue]:
    """Yields the values of a stream, on the loop of the engine. See `stream_values`."""
    loop = open_engine.loop
    assert loop is not None
    loop.check("the iterator")
    while page := await reader.next_page(loop.native):
        for row in page:
            yield _value_of(row)


def _value_of(row: Any) -> StreamValue:
    offset, value, written_at, step, attempt_offset = row
    return StreamValue(offset, readable(value), to_datetime(written_at), step, attempt_offset)


__all__ = ["StreamValue", "check_reading", "stream_values", "stream_values_async"]
