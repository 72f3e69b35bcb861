"""Converts exceptions to recorded failures, and recorded failures to exceptions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final, cast

from stepfast._native import Branch, Call
from stepfast._runtime.branch import StepBody, current_code
from stepfast._runtime.exception_kinds import to_recordable
from stepfast._validation.bounds import check_storable_text
from stepfast._validation.text import short_repr
from stepfast._values import EncodeError, decode_exception, encode_exception
from stepfast._values.errors import text_of
from stepfast.errors import (
    Conflict,
    DedupConflict,
    EngineClosed,
    Error,
    ExecutionEnded,
    InvalidArgument,
    NotFound,
    QueueConflict,
    QueueFull,
    ScheduleConflict,
    ScheduleNotFound,
    SchemaMismatch,
    StoreCorrupt,
    StoreUnavailable,
    TokenAnswered,
    WorkflowCancelled,
    WorkflowFailed,
    WorkflowIdConflict,
    WorkflowParked,
)

FailureTuple = tuple[str, str, list[str], bool, bytes]

_log: Final = logging.getLogger("stepfast")

#: The failure kinds of a cancelled execution: its deadline has passed, or a cancel was requested.
CANCELLED_KINDS: Final = ("SF-0021", "SF-0022")

#: The exception class for each kind of error of the engine.
CLASS_BY_KIND: Final[dict[str, type[Error]]] = {
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
CLASS_BY_CODE: Final[dict[str, type[Error]]] = {
    "SF-0001": InvalidArgument,
    "SF-0003": WorkflowIdConflict,
    "SF-0004": NotFound,
    "SF-0012": EngineClosed,
    "SF-0014": SchemaMismatch,
    "SF-0037": NotFound,
    "SF-0038": QueueConflict,
    "SF-0039": DedupConflict,
    "SF-0040": QueueFull,
    "SF-0042": ExecutionEnded,
    "SF-0043": TokenAnswered,
    "SF-0044": ScheduleNotFound,
    "SF-0045": ScheduleConflict,
}


def failure_of(raised: BaseException, retry_if: Callable[[Exception], bool] | None = None) -> FailureTuple:
    """Returns the failure to record for an exception.

    An exception that `retry_if` itself raises is recorded in place of the original one, and is not retried.

    Args:
        raised: The exception.
        retry_if: A function that returns whether an exception may be retried. By default every exception may
            be retried.
    """
    raised = to_recordable(raised)
    is_retryable = False
    # a value that cannot be recorded now cannot be recorded by the next attempt either
    if isinstance(raised, Exception) and not isinstance(raised, EncodeError):
        try:
            is_retryable = retry_if is None or bool(retry_if(raised))
        except Exception as broken:
            broken.__cause__ = raised
            broken.add_note("raised by the retry_if of the step, which was called with the exception above")
            raised = broken
    causes: list[str] = []
    cause = raised.__cause__
    while cause is not None and len(causes) < 16:
        causes.append(f"{type(cause).__qualname__}: {text_of(cause)}")
        cause = cause.__cause__
    kind = type(raised).__qualname__
    message = text_of(raised) or kind
    return (kind, message, causes, is_retryable, encode_exception(raised))


def given_failure(error: BaseException | str) -> FailureTuple:
    """Returns the failure to record for an error that a caller gives: an exception, or a text.

    Raises:
        InvalidArgument: The error is neither of them.
    """
    if isinstance(error, BaseException):
        return failure_of(error)
    if not isinstance(cast("object", error), str):
        raise InvalidArgument(f"error is {short_repr(error)}, and must be an exception or a text")
    check_storable_text("error", error)
    return ("Failure", error, [], True, b"")


def workflow_failure(branch: Branch, raised: BaseException) -> FailureTuple:
    """Returns the failure to record for a workflow, and logs it.

    Args:
        branch: The first branch of the execution.
        raised: The exception that the code of the workflow has raised.
    """
    # an exception that unwinds a stopped run is not a failure
    if isinstance(raised, Exception) and not branch.is_closing and _log.isEnabledFor(logging.WARNING):
        with _code_running(branch):
            _log.warning(
                "workflow %r has failed (workflow_id %r)",
                branch.workflow,
                branch.workflow_id,
                exc_info=raised,
            )
    return failure_of(raised)


def step_failure(
    name: str, raised: BaseException, retry_if: Callable[[Exception], bool] | None = None
) -> FailureTuple:
    """Returns the failure to record for a step whose body raised an exception, or returned a value that
    cannot be recorded."""
    if isinstance(raised, EncodeError):
        raised.args = (f"step {name!r}: {raised}",)
    return failure_of(raised, retry_if)


def fail_attempt(
    call: Call, name: str, raised: BaseException, retry_if: Callable[[Exception], bool] | None
) -> int:
    """Records and logs a failed attempt of a step. Returns the call's state code."""
    failure = step_failure(name, raised, retry_if)
    # read before `fail`, because the next attempt may begin at once and change the number
    attempt = call.attempt
    state, pause = call.fail(failure)
    here = current_code.get()
    if here is not None:
        branch = here[0] if isinstance(here, tuple) else here
        log_failed_attempt((branch, call, name, attempt), raised, pause)
    return state


def log_failed_attempt(body: StepBody, raised: BaseException, pause: float | None) -> None:
    """Logs a failed attempt of a step.

    Args:
        body: The step body whose attempt has failed.
        raised: The exception with which the attempt has failed.
        pause: The pause before the next attempt, in seconds; None if there is no further attempt.
    """
    if not isinstance(raised, Exception) or not _log.isEnabledFor(logging.INFO):
        return
    branch, _, name, attempt = body
    outlook = "no further one follows" if pause is None else f"the next one begins in {pause:.3g} s"
    with _code_running(body):
        _log.info(
            "attempt %s of step %r has failed; %s (workflow %r, workflow_id %r)",
            attempt,
            name,
            outlook,
            branch.workflow,
            branch.workflow_id,
            exc_info=raised,
        )


@contextmanager
def _code_running(code: Branch | StepBody) -> Generator[None]:
    """Makes log records name the execution and the step of code that has ended."""
    token = current_code.set(code)
    try:
        yield
    finally:
        current_code.reset(token)


def recorded_exception(failure: tuple[str, str, list[str], bytes] | None) -> BaseException:
    """Returns the exception for a recorded failure. A failure that Python has recorded becomes its own
    exception again."""
    if failure is None:
        return WorkflowFailed("the execution failed, and no reason is recorded", "SF-0008")
    kind, message, _, detail = failure
    if detail:
        return decode_exception(detail)
    if kind in CANCELLED_KINDS:
        return WorkflowCancelled(message, kind)
    if kind.startswith("SF-"):
        return CLASS_BY_CODE.get(kind, WorkflowFailed)(message, kind)
    # no attribute of the exception has the kind
    return WorkflowFailed(f"{kind}: {message}", "SF-0008")


def exception_for_error(
    kind: str, code: str, message: str, failure: tuple[str, str, bytes] | None
) -> BaseException:
    """Returns the exception for an error of the engine.

    An exception that the workflow has raised is rebuilt if possible. Otherwise the returned exception has the
    code of the failure that ended or parked the execution.

    Args:
        kind: The kind of the error, a key of `CLASS_BY_KIND`.
        code: The code of the error, such as `SF-0003`.
        message: The text of the error.
        failure: The recorded failure that caused the error: kind, message, encoded exception. None if no
            failure caused it.
    """
    cls = CLASS_BY_CODE.get(code) or CLASS_BY_KIND.get(kind, Error)
    if failure is not None:
        cause, _, detail = failure
        if kind == "Failed" and detail:
            return decode_exception(detail)
        if cause.startswith("SF-"):
            code = cause
    return cls(message, code)
