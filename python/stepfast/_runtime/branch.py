"""The branch of an execution that the running code belongs to."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

from stepfast._native import Branch, Call
from stepfast.errors import Cancelled, Invalid, Suspended

PENDING: Final = 0
BODY: Final = 1
DONE: Final = 2
FAILED: Final = 3
ERROR: Final = 4
STOPPED: Final = 5
CHILD: Final = 6

#: The body of a step that runs: its branch, its call, the name of the step.
Body = tuple[Branch, Call, str]

#: What runs here: code of this branch, or this body, or nothing of a workflow. One variable for both, as it
#: is set and reset for every body.
here_var: Final[ContextVar[Branch | Body | None]] = ContextVar("stepfast", default=None)


def branch_here() -> Branch | None:
    """The branch whose code runs here: none in the body of a step."""
    here = here_var.get()
    return here if type(here) is Branch else None


def refuse_in_workflow(what: str) -> None:
    """Refuses to ask for something in the code of a workflow: a replay would ask again, and could see
    something else.

    Raises:
        Invalid: This is the code of a workflow.
    """
    if type(here_var.get()) is Branch:
        raise Invalid(
            f"{what} is called in the code of a workflow, where a replay would call it again, and could see "
            "something else: call it in a step, whose outcome is recorded"
        )


def unwinding(stopped: int) -> BaseException:
    """What unwinds code that has been stopped."""
    if stopped == 2:
        return Cancelled("the execution was cancelled")
    if stopped == 3:
        return Suspended("the workflow has returned, and did not wait for this")
    return Suspended("the execution goes on later, from what is recorded")
