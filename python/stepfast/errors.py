"""The exceptions of Stepfast. All of them derive from `Error`, except those that unwind the code of a
workflow."""

from __future__ import annotations

from typing import Final

__all__ = [
    "Cancelled",
    "Conflict",
    "DedupConflict",
    "EngineClosed",
    "Error",
    "InvalidArgument",
    "NotFound",
    "ProcessDied",
    "QueueConflict",
    "QueueFull",
    "ResultTimeout",
    "SchemaMismatch",
    "StepfastWarning",
    "StoreCorrupt",
    "StoreUnavailable",
    "Suspended",
    "Unavailable",
    "WorkflowCancelled",
    "WorkflowFailed",
    "WorkflowIdConflict",
    "WorkflowParked",
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


class InvalidArgument(Error, ValueError):
    """The call is wrong: correct it and call again."""


class Conflict(Error):
    """Something that is stored rules the call out. Base of `WorkflowIdConflict`, `QueueConflict`,
    `DedupConflict` and `QueueFull`."""


class WorkflowIdConflict(Conflict):
    """The workflow_id belongs to an execution of another workflow, or with other arguments."""


class QueueConflict(Conflict):
    """The queue is stored with limits that differ from those in the code, and must not be changed."""


class DedupConflict(Conflict):
    """The queue already has an unfinished execution with this dedup_id. Nothing was started."""


class QueueFull(Conflict):
    """The queue is full: as many executions wait in it as its `max_depth` allows. Nothing was started."""


class NotFound(Error, LookupError):
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


class WorkflowParked(Error):
    """The execution is parked: it continues when it is resumed, after a fix."""


class Unavailable(Error):
    """The call got no reply. Base of `StoreUnavailable` and `EngineClosed`."""


class StoreUnavailable(Unavailable):
    """The database is unreachable. The outcome of the call is unknown; with the same workflow_id the call may
    be repeated."""


class EngineClosed(Unavailable):
    """The engine is closed. Another engine continues the executions that it has accepted."""


class StoreCorrupt(Error):
    """The recorded data cannot be read."""


class SchemaMismatch(Error):
    """The database has, or is about to get, the schema of a newer version of Stepfast: upgrade this
    program."""


class ResultTimeout(Error, TimeoutError):
    """The execution has not ended within the `timeout` of `result`. The execution continues.

    A `TimeoutError` that is no `ResultTimeout` was raised by the workflow itself.
    """

    def __init__(self, message: str, code: str = "SF-0041") -> None:
        super().__init__(message, code)


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
    """Code does something that is probably not intended: it is not durable, it blocks an event loop, or a
    replay may not be able to repeat it."""


class Suspended(BaseException):
    """Unwinds the code of an execution that continues later, or on another worker. Do not catch it."""


class Cancelled(BaseException):
    """Unwinds the code of an execution that was cancelled. Do not suppress it."""


def forked_process_error() -> InvalidArgument:
    """Returns the error for an engine or a handle that is used in a process forked from its own."""
    return InvalidArgument(
        "this belongs to the process that this one was forked from, and cannot be used here: open an engine "
        "in this process, or start a new process (multiprocessing: spawn)",
        "SF-0034",
    )


def other_loop_error(what: str) -> InvalidArgument:
    """Returns the error for an object of an event loop that is used on another loop, or on none.

    Args:
        what: The object, for the message.
    """
    return InvalidArgument(
        f"{what} belongs to the event loop on which it was opened, and this is another one, or none: use it "
        "in coroutines of that loop only; for threads there is asyncio.run_coroutine_threadsafe, and Engine",
        "SF-0033",
    )


#: The exception class for each kind of error of the engine.
KINDS: Final[dict[str, type[Error]]] = {
    "Invalid": InvalidArgument,
    "Conflict": Conflict,
    "NotFound": NotFound,
    "Failed": WorkflowFailed,
    "Cancelled": WorkflowCancelled,
    "Parked": WorkflowParked,
    "Unavailable": StoreUnavailable,
    "Corrupt": StoreCorrupt,
}

#: The exception classes of single error codes. All other codes have the class of their kind.
CODES: Final[dict[str, type[Error]]] = {
    "SF-0003": WorkflowIdConflict,
    "SF-0012": EngineClosed,
    "SF-0014": SchemaMismatch,
    "SF-0037": NotFound,
    "SF-0038": QueueConflict,
    "SF-0039": DedupConflict,
    "SF-0040": QueueFull,
}
