"""The branch of an execution that the running code belongs to."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from stepfast.errors import Cancelled, Suspended

if TYPE_CHECKING:
    from stepfast._native import Branch

PENDING: Final = 0
BODY: Final = 1
DONE: Final = 2
FAILED: Final = 3
ERROR: Final = 4
STOPPED: Final = 5
CHILD: Final = 6

branch_var: Final[ContextVar[Branch | None]] = ContextVar("stepfast_branch", default=None)


def unwinding(stopped: int) -> BaseException:
    """What unwinds code that has been stopped."""
    if stopped == 2:
        return Cancelled("the execution was cancelled")
    if stopped == 3:
        return Suspended("the workflow has returned, and did not wait for this")
    return Suspended("the execution goes on later, from what is recorded")
