"""The exceptions of Stepfast. All of them derive from `Error`, except those that unwind the code of a
workflow."""

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
    """Base of the exceptions that Stepfast raises.

    Attributes:
        code: The error code, such as `SF-0003`. Codes are stable, and the error catalogue describes each of
            them.
    """

    code: str

    def __init__(self, message: str, code: str = "SF-0001") -> None:
        super().__init__(message)
        self.code = code


class Invalid(Error):
    """The call is wrong: correct it and call again."""


class Conflict(Error):
    """The workflow_id belongs to another workflow, or to another input; or a queue is stored with limits that
    differ from those in the code, and must not be changed."""


class QueueFull(Conflict):
    """The queue is full: as many executions wait in it as its `max_depth` allows. Nothing was started."""


class NotFound(Error):
    """The execution, workflow or queue does not exist."""


class WorkflowFailed(Error):
    """The workflow or the step failed without an exception of Python.

    Its value was too large, or the database rejected the value, or its code was written in Rust. The message
    gives the reason.
    """


class WorkflowCancelled(Error):
    """The execution was cancelled, or its time limit was reached.

    Raised in the code of a workflow, it reports a cancelled child: code cannot catch the cancellation of its
    own execution.
    """


class Parked(Error):
    """The execution is parked: it continues when it is resumed, after a fix."""


class Unavailable(Error):
    """The database was unreachable, or the engine has ended. The call may be repeated."""


class Corrupt(Error):
    """The recorded data cannot be read."""


class ProcessDied(Error):
    """The process of a step with `process=True` ended before the body had returned: a failed attempt.

    Attributes:
        exit_code: The exit code of the process, or minus the number of the signal that killed it; `None` if
            the process could not be reached any more.
    """

    exit_code: int | None

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message, "SF-0032")
        self.exit_code = exit_code


class StepfastWarning(UserWarning):
    """Code of a workflow does something that a replay may not be able to repeat."""


class Suspended(BaseException):
    """Unwinds the code of an execution that continues later, or on another worker. Do not catch it."""


class Cancelled(BaseException):
    """Unwinds the code of an execution that was cancelled. Do not suppress it."""


def forked_process_error() -> Invalid:
    """Returns the error for an engine or a handle that is used in a process forked from its own."""
    return Invalid(
        "this belongs to the process that this one was forked from, and cannot be used here: open an engine "
        "in this process, or start a new process (multiprocessing: spawn)",
        "SF-0034",
    )


def other_loop_error(what: str) -> Invalid:
    """Returns the error for an object of an event loop that is used on another loop, or on none.

    Args:
        what: The object, for the message.
    """
    return Invalid(
        f"{what} belongs to the event loop on which it was opened, and this is another one, or none: use it "
        "in coroutines of that loop only; for threads there is asyncio.run_coroutine_threadsafe, and Engine",
        "SF-0033",
    )


#: The exception class for each kind of error of the engine.
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

#: The exception classes of single error codes.
CODES: Final[dict[str, type[Error]]] = {"SF-0040": QueueFull}
