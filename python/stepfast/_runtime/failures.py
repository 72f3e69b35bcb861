"""Exceptions as they are recorded, and as they are raised again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from stepfast._runtime.current import current
from stepfast._runtime.outcomes import recordable
from stepfast._values import EncodeError, decode_exception, encode_exception
from stepfast._values.errors import text_of
from stepfast.errors import CODES, KINDS, Error, WorkflowCancelled, WorkflowFailed

Failure = tuple[str, str, list[str], bool, bytes]

_log: Final = logging.getLogger("stepfast")

#: Kinds of the failure of an execution that was cancelled: at its deadline, and on request.
CANCELLED: Final = ("SF-0021", "SF-0022")


def failure_of(
    raised: BaseException,
    retry_if: Callable[[Exception], bool] | None = None,
    what: str = "the workflow",
) -> Failure:
    """What is recorded of an exception that `what` has raised. If `retry_if` raises one, that is recorded,
    and not retried."""
    if isinstance(raised, Exception) and _log.isEnabledFor(logging.INFO):
        now = current()
        whose = "" if now is None else f" (workflow {now.workflow!r}, workflow_id {now.workflow_id!r})"
        _log.info("%s has failed%s", what, whose, exc_info=raised)
    raised = recordable(raised)
    is_retryable = False
    # what cannot be recorded cannot be recorded at the next attempt either
    if isinstance(raised, Exception) and not isinstance(raised, EncodeError):
        try:
            is_retryable = retry_if is None or bool(retry_if(raised))
        except Exception as broken:
            broken.__cause__ = raised
            broken.add_note("raised by the retry_if of the step, which was asked about the exception above")
            raised = broken
    causes: list[str] = []
    cause = raised.__cause__
    while cause is not None and len(causes) < 16:
        causes.append(f"{type(cause).__qualname__}: {text_of(cause)}")
        cause = cause.__cause__
    kind = type(raised).__qualname__
    message = text_of(raised) or kind
    return (kind, message, causes, is_retryable, encode_exception(raised))


def failure_in_step(
    name: str, raised: BaseException, retry_if: Callable[[Exception], bool] | None = None
) -> Failure:
    """The same of what the body of a step has raised, or what it has returned and cannot be recorded."""
    if isinstance(raised, EncodeError):
        raised.args = (f"step {name!r}: {raised}",)
    return failure_of(raised, retry_if, f"an attempt of step {name!r}")


def raised_again(failure: tuple[str, str, list[str], bytes] | None) -> BaseException:
    """The exception of a recorded failure."""
    if failure is None:
        return WorkflowFailed("it failed, and nothing is recorded of why", "SF-0008")
    kind, message, _, detail = failure
    if detail:
        return decode_exception(detail)
    if kind in CANCELLED:
        return WorkflowCancelled(f"{kind}: {message}", kind)
    code = kind if kind.startswith("SF-") else "SF-0008"
    return WorkflowFailed(f"{kind}: {message}", code)


def made(kind: str, code: str, message: str, failure: tuple[str, str, bytes] | None) -> BaseException:
    """The exception for an error of the engine; that of the workflow itself where it can be made again. Its
    code is that of what has ended the execution, or parked it."""
    if failure is not None:
        cause, _, detail = failure
        if kind == "Failed" and detail:
            return decode_exception(detail)
        if cause.startswith("SF-"):
            code = cause
    return CODES.get(code, KINDS.get(kind, Error))(message, code)
