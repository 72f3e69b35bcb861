"""Durable calls without a body, as async code waits for them."""

from __future__ import annotations

import asyncio
from typing import Any

from stepfast import _native
from stepfast.branch import DONE, FAILED, PENDING
from stepfast.step import over
from stepfast.task import cancelled


async def awaited(call: _native.Call, branch: _native.Branch) -> Any:
    """Waits for a call of the branch."""
    try:
        while call.turn == PENDING:
            await call
        return outcome(call, call.turn)
    except asyncio.CancelledError:
        turn = cancelled(call, branch)
        if turn in (DONE, FAILED):
            return outcome(call, turn)
        raise
    finally:
        # a traceback may keep it
        call.close()


def outcome(call: _native.Call, turn: int) -> Any:
    """The value of a call, or what it ended with."""
    if turn != DONE:
        raise over(call, turn)
    return call.value()


__all__ = ["awaited"]
