"""What the native side, which carries async steps out, leaves to Python: all that is rare."""

from __future__ import annotations

import asyncio

from stepfast import _native
from stepfast.ended import is_outcome
from stepfast.failure import failure_of
from stepfast.step import over
from stepfast.task import cancelled


def failed(call: _native.Call, settings: _native.StepSettings, raised: BaseException) -> int | None:
    """The body of the call's step has raised: whose turn it is; None if that is no outcome."""
    return call.fail(failure_of(raised, settings.retry_if)) if is_outcome(raised) else None


def interrupted(call: _native.Call, branch: _native.Branch | None, raised: BaseException) -> int | None:
    """What awaits the call is cancelled, or the program is to end: whose turn it is, if the call is over.

    Raises:
        Suspended: See `cancelled`.
    """
    if branch is not None and isinstance(raised, asyncio.CancelledError):
        return cancelled(call, branch)
    if branch is not None and isinstance(raised, KeyboardInterrupt | SystemExit):
        # nothing more is recorded of the code, which unwinds
        branch.put_off()
    return None


__all__ = ["failed", "interrupted", "over"]
