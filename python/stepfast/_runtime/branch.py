"""The branch of an execution to which the running code belongs."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Any, Final

from stepfast._native import Branch, Call
from stepfast.errors import Cancelled, InvalidArgument, Suspended

#: The state codes of a call. They must equal those in python/src/poll_state.rs.
PENDING: Final = 0
RUN_BODY: Final = 1
DONE: Final = 2
FAILED: Final = 3
ERROR: Final = 4
STOPPED: Final = 5
RUN_CHILD: Final = 6

#: A running step body: its branch, its call, the name of the step, and the number of the attempt.
StepBody = tuple[Branch, Call, str, int | None]

#: The code that runs in this context: the branch of workflow code, the running step body, or None outside of
#: executions. One variable serves both kinds of code, so a step body sets and resets only one.
current_code: Final[ContextVar[Branch | StepBody | None]] = ContextVar("stepfast", default=None)


#: The reason why an execution fails whose input another program has written in another form.
NOT_ARGUMENTS: Final = (
    "the input of the execution is not the arguments of a Python function: give them by --arguments of the "
    "program stepfast, or start the workflow in Python"
)


def current_branch() -> Branch | None:
    """Returns the branch whose code runs here; None in the body of a step and outside of executions."""
    current = current_code.get()
    return current if type(current) is Branch else None


def call_in_empty_context(branch: Branch, function: Callable[..., Any], arguments: Any) -> Any:
    """Calls the function of a workflow in an empty context, in which `branch` is the current code.

    No native frame is below the call. The interpreter may end a daemon thread while it runs the code, and a
    native frame cannot be unwound.

    Args:
        branch: The first branch of the execution.
        function: The function of the workflow.
        arguments: The arguments by position, and the arguments by name.

    Raises:
        InvalidArgument: The input of the execution is something else.
    """
    try:
        args, kwargs = arguments
    except (TypeError, ValueError):
        raise InvalidArgument(NOT_ARGUMENTS) from None
    if (type(args), type(kwargs)) != (list, dict):
        raise InvalidArgument(NOT_ARGUMENTS)
    return Context().run(_call_as_branch, branch, function, args, kwargs)


def _call_as_branch(
    branch: Branch, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    current_code.set(branch)
    return function(*args, **kwargs)


def forbid_in_workflow(what: str) -> None:
    """Rejects a query whose result a replay cannot repeat, if workflow code makes it.

    Args:
        what: The call, as the error message names it.

    Raises:
        InvalidArgument: The caller is the code of a workflow.
    """
    if type(current_code.get()) is Branch:
        raise InvalidArgument(
            f"{what} is called in the code of a workflow, where a replay would call it again, and could see "
            "something else: call it in a step, whose outcome is recorded"
        )


def unwind_exception(stop_code: int) -> BaseException:
    """Returns the exception that unwinds stopped code.

    Args:
        stop_code: The reason for the stop: 1 suspended, 2 cancelled, 3 the workflow has returned, 4 another
            branch has won a race.
    """
    if stop_code == 2:
        return Cancelled("the execution was cancelled")
    if stop_code == 4:
        return Suspended("another call of the race has ended first")
    if stop_code == 3:
        return Suspended("the workflow has returned, and did not wait for this branch")
    return Suspended("the execution continues later from its record")
