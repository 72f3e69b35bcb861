"""Durable calls without a body, as workflow code waits for them."""

from __future__ import annotations

import asyncio
from typing import Any

from stepfast import _native
from stepfast.branch import DONE, FAILED, PENDING, unwinding
from stepfast.step import over


async def awaited(call: _native.Call, branch: _native.Branch) -> Any:
    """Waits for a call of the branch, in a task of the loop."""
    try:
        turn = PENDING
        while turn == PENDING:
            await call
            turn = call.turn
        return outcome(call, turn)
    except asyncio.CancelledError:
        if branch.is_closing:
            raise unwinding(call.stopped) from None
        turn = call.poll()
        if turn in (DONE, FAILED):
            # delivered, and recorded, in the same moment: that is what a replay will see
            return outcome(call, turn)
        raise
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        # the code is cut off, and has not given the call up
        branch.hand_back()
        raise
    finally:
        call.close()


def awaited_here(call: _native.Call, branch: _native.Branch) -> Any:
    """Waits for a call of the branch, in this thread."""
    try:
        return outcome(call, call.wait())
    except (KeyboardInterrupt, SystemExit):
        branch.hand_back()
        raise
    finally:
        call.close()


def outcome(call: _native.Call, turn: int) -> Any:
    """The value of a call, or what it ended with."""
    if turn != DONE:
        raise over(call, turn)
    return call.value()


__all__ = ["awaited", "awaited_here"]
