"""Exceptions. Whatever Stepfast raises derives from `Error`, but for what unwinds a workflow."""

from __future__ import annotations

from typing import Final

__all__ = [
    "Cancelled",
    "Conflict",
    "Corrupt",
    "Error",
    "Invalid",
    "NotFound",
    "Parked",
    "ProcessDied",
    "QueueFull",
    "StepfastWarning",
    "Suspended",
    "Unavailable",
    "WorkflowCancelled",
    "WorkflowFailed",
]


class Error(Exception):
    """Anything that Stepfast raises.

    Attributes:
        code: Such as `SF-0003`. It is stable, and the error catalogue has a paragraph on it.
    """

    code: str

    def __init__(self, message: str, code: str = "SF-0001") -> None:
        super().__init__(message)
        self.code = code


class Invalid(Error):
    """What was asked for is wrong: correct it and call again."""


class Conflict(Error):
    """The workflow_id is taken by another workflow, or by another input. Or a queue is stored with other
    limits than the code declares, which are not to be changed."""


class QueueFull(Conflict):
    """As many executions wait in the queue as its `max_depth` allows: nothing was started."""


class NotFound(Error):
    """There is no such execution, workflow or queue."""


class WorkflowFailed(Error):
    """The workflow, or the step, failed, and not with an exception of Python: its value was too large, or the
    database refused it, or its code was written in Rust. The message says why."""


class WorkflowCancelled(Error):
    """The execution was cancelled, or its time was up. In the code of a workflow it is a child that was: its
    own cancellation no code can catch."""


class Parked(Error):
    """The execution is parked: it goes on when it is resumed, after a fix."""


class Unavailable(Error):
    """The database did not answer in time, or the engine has ended. It may be tried again."""


class Corrupt(Error):
    """What is recorded cannot be read."""


class ProcessDied(Error):
    """The process of a step with `process=True` ended before the body had returned: a failed attempt.

    Attributes:
        exit_code: What it ended with: an exit code, or minus the number of the signal that killed it; `None`
            if it could not be reached any more.
    """

    exit_code: int | None

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message, "SF-0032")
        self.exit_code = exit_code


class StepfastWarning(UserWarning):
    """Code of a workflow does what a replay may not be able to repeat."""


class Suspended(BaseException):
    """Unwinds the code of an execution that goes on later, or elsewhere. Do not catch it."""


class Cancelled(BaseException):
    """Unwinds the code of an execution that was cancelled. Do not keep it from leaving."""


def forked() -> Invalid:
    """An engine, or a handle, is used in a process that was forked from its own."""
    return Invalid(
        "this belongs to the process that this one was forked from, and cannot be used here: open an engine "
        "in this process, or start the process anew (multiprocessing: spawn)",
        "SF-0034",
    )


def elsewhere(what: str) -> Invalid:
    """Something that belongs to an event loop is used on another one, or on none."""
    return Invalid(
        f"{what} belongs to the event loop on which it was opened, and this is another one, or none: use it "
        "in coroutines of that loop only; for threads there is asyncio.run_coroutine_threadsafe, and Engine",
        "SF-0033",
    )


#: The class for each kind of error of the engine.
KINDS: Final[dict[str, type[Error]]] = {
    "Invalid": Invalid,
    "Conflict": Conflict,
    "NotFound": NotFound,
    "Failed": WorkflowFailed,
    "Cancelled": WorkflowCancelled,
    "Parked": Parked,
    "Unavailable": Unavailable,
    "Corrupt": Corrupt,
}

#: Those that have a class of their own, by code.
CODES: Final[dict[str, type[Error]]] = {"SF-0040": QueueFull}
