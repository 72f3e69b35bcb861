"""The exceptions and the warning of Stepfast. The exceptions derive from `Error`, except `Cancelled` and
`Suspended`: these two unwind the code of a workflow. The warning is `StepfastWarning`."""

from __future__ import annotations

__all__ = [
    "Cancelled",
    "Conflict",
    "DedupConflict",
    "EngineClosed",
    "Error",
    "ExecutionEnded",
    "InvalidArgument",
    "NotFound",
    "ProcessDied",
    "QueueConflict",
    "QueueFull",
    "ResultTimeout",
    "ScheduleConflict",
    "ScheduleNotFound",
    "SchemaMismatch",
    "StepfastWarning",
    "StoreCorrupt",
    "StoreUnavailable",
    "Suspended",
    "TokenAnswered",
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
    """The call conflicts with stored data. Base of `WorkflowIdConflict`, `QueueConflict`, `ScheduleConflict`,
    `DedupConflict`, `QueueFull`, `ExecutionEnded` and `TokenAnswered`."""


class WorkflowIdConflict(Conflict):
    """The workflow_id belongs to an execution that has another workflow or other arguments."""


class QueueConflict(Conflict):
    """The queue is stored with limits that differ from those in the code, and its `on_conflict` is
    `reject`."""


class ScheduleConflict(Conflict):
    """The schedule is stored with values that differ from those in the code, and its `on_conflict` is
    `reject`."""


class DedupConflict(Conflict):
    """The queue already has an unfinished execution with this dedup_id. Nothing was started."""


class QueueFull(Conflict):
    """The queue is full: as many executions wait in it as its `max_depth` allows. Nothing was started."""


class ExecutionEnded(Conflict):
    """The execution has ended: it receives no message, sets no event, and gives no answer. Nothing was
    sent."""


class TokenAnswered(Conflict):
    """The token has an answer already. The first answer counts, and this one was not recorded."""


class NotFound(Error, LookupError):
    """The execution, workflow, queue or schedule does not exist. Base of `ScheduleNotFound`."""


class ScheduleNotFound(NotFound):
    """The schedule does not exist, or was deleted."""


class WorkflowFailed(Error):
    """The workflow or the step failed without an exception of Python, or a text has failed a token or refused
    a question.

    A value was too large, or the database rejected a value, or the code is written in Rust. The message gives
    the reason.
    """


class WorkflowCancelled(Error):
    """The execution was cancelled, or its time limit was reached.

    In the code of a workflow, this exception reports a cancelled child. Code cannot catch the cancellation of
    its own execution.
    """


class WorkflowParked(Error):
    """The execution is parked. After a repair of the cause, a resume continues it."""


class Unavailable(Error):
    """The engine or the database gave no reply to the call. Base of `StoreUnavailable` and `EngineClosed`."""


class StoreUnavailable(Unavailable):
    """The database is unreachable. The outcome of the call is unknown. Repeating a start with the same
    workflow_id is safe."""


class EngineClosed(Unavailable):
    """The engine is closed. Other engines continue the executions that it has accepted."""


class StoreCorrupt(Error):
    """The recorded data cannot be read."""


class SchemaMismatch(Error):
    """The database has, or is about to get, the schema of a newer version of Stepfast. Upgrade Stepfast in
    this program."""


class ResultTimeout(Error, TimeoutError):
    """The execution has not ended within the `timeout` of `result`. The execution continues.

    A `TimeoutError` that is no `ResultTimeout` was raised by the workflow itself.
    """

    def __init__(self, message: str, code: str = "SF-0041") -> None:
        super().__init__(message, code)


class ProcessDied(Error):
    """The process of a step with `process=True` ended before the body had returned. The attempt has failed.

    Attributes:
        exit_code: The exit code of the process, or minus the number of the signal that killed it. `None` if
            the process still ran, but could not be reached any more.
    """

    exit_code: int | None

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message, "SF-0032")
        self.exit_code = exit_code


class StepfastWarning(UserWarning):
    """The program does something that is probably not intended. For example, a call is not durable or blocks
    an event loop, or a replay may not be able to repeat the code."""


class Suspended(BaseException):
    """An exception that unwinds the code of an execution that continues later, or on another worker. Do not
    catch it."""


class Cancelled(BaseException):
    """An exception that unwinds the code of an execution that was cancelled. Do not suppress it."""
