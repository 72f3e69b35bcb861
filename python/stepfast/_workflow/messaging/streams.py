"""Streams in the code of workflows, and in the bodies of their steps."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, cast

from stepfast import _native
from stepfast._runtime.branch import current_branch, current_code
from stepfast._runtime.waiting import await_or_wait
from stepfast._validation import bounds
from stepfast._workflow.messaging.in_step import call_in_step
from stepfast.errors import InvalidArgument


def write_stream(stream: str, value: Any) -> Awaitable[None]:
    """Writes a value to a stream of this execution: `write_stream(…)` in sync code, `await write_stream(…)`
    in async code. For the code of a workflow, and for the bodies of its steps.

    Any process can read the stream while it grows, by `engine.read_stream`.

    In the code of a workflow, the value is recorded, once: a replay does not write it again. The value is
    durable before the next step begins.

    In the body of a step, the call returns before the value is durable. The value is durable at the latest
    when the outcome of the step is. If the body runs again, for a retry or after a crash, its values are
    written again. Readers tell the attempts apart by `StreamValue.attempt_offset`. Write many values in
    steps: a replay does not load them.

    Args:
        stream: The name of the stream, at most 255 bytes.
        value: The value, of up to 64 KiB encoded.

    Returns:
        In async code an object to await. In sync code None.

    Raises:
        InvalidArgument: The caller is neither the code of a workflow nor the body of a step, or the step has
            `process=True`. Or no stream can have the name, the stream is closed, or the value is too large.
        EncodeError: The value cannot be recorded.
    """
    bounds.check_name("stream", stream)
    here = current_code.get()
    if here is None:
        raise InvalidArgument(
            "write_stream is called outside of executions: call it in the code of a workflow that an engine "
            "runs, or in its steps"
        )
    if isinstance(here, tuple):
        return call_in_step(here, "write_stream", _native.append_to_stream, stream, value)
    return _finish_call(here, _native.write_stream(here, stream, value))


def close_stream(stream: str) -> Awaitable[None]:
    """Closes a stream of this execution: `close_stream(…)` in sync code, `await close_stream(…)` in async
    code. Only the code of a workflow can close streams.

    Readers reach the end of the stream, and no further value can be written. The end of the execution ends
    all of its streams, so closing a stream is needed only before.

    Args:
        stream: The name of the stream.

    Returns:
        In async code an object to await. In sync code None.

    Raises:
        InvalidArgument: The caller is not the code of a workflow, no stream can have the name, or the stream
            is closed.
    """
    bounds.check_name("stream", stream)
    branch = current_branch()
    if branch is None:
        raise InvalidArgument(
            "close_stream is called outside of the code of a workflow, such as in a step: close the stream "
            "in the workflow, after the step"
        )
    return _finish_call(branch, _native.close_stream(branch, stream))


def _finish_call(branch: _native.Branch, call: _native.Call) -> Awaitable[None]:
    return cast("Awaitable[None]", await_or_wait(branch, call))


__all__ = ["close_stream", "write_stream"]
