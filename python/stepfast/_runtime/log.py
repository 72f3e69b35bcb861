"""Connects engines to `logging`: log records of Python code name their execution, and the log lines of native
engines become log records."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable
from typing import Any, Final

from stepfast import _native
from stepfast._runtime.current import current_or_none

#: The logger for the log lines of native engines.
ENGINE_LOGGER: Final[logging.Logger] = logging.getLogger("stepfast.engine")
#: The longest time for which the exit of the program waits for log handlers, in seconds.
HANDLER_TIMEOUT: Final = 1.0

_start_lock = threading.Lock()
_forwarder: threading.Thread | None = None


class RecordFactory:
    """A record factory of `logging` that adds attributes of the execution to each log record.

    The attributes are `stepfast_workflow_id`, `stepfast_workflow` and `stepfast_step`, which are empty
    outside of executions, and `stepfast_is_replaying`. The factory calls the factory that was installed
    before it. The program may install another factory that calls this one.
    """

    def __init__(self, wrapped: Callable[..., logging.LogRecord]) -> None:
        self._wrapped: Final = wrapped

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        # the names of the attributes have a prefix, because `extra=` of a log call raises for a name that the
        # record has already
        record = self._wrapped(*args, **kwargs)
        execution = current_or_none()
        if execution is None:
            record.stepfast_workflow_id = record.stepfast_workflow = record.stepfast_step = ""
            record.stepfast_is_replaying = False
        else:
            record.stepfast_workflow_id, record.stepfast_workflow = execution.workflow_id, execution.workflow
            record.stepfast_step, record.stepfast_is_replaying = execution.step or "", execution.is_replaying
        return record


def install() -> None:
    """Installs the record factory, and the thread that forwards log lines of engines.

    The factory calls the one that is installed. Because of the thread, engines need not wait for log
    handlers.
    """
    global _forwarder
    with _start_lock:
        factory = logging.getLogRecordFactory()
        if not isinstance(factory, RecordFactory):
            logging.setLogRecordFactory(RecordFactory(factory))
        if _forwarder is None or not _forwarder.is_alive():
            _native.set_log_closed(False)
            _forwarder = threading.Thread(target=_forward, name="stepfast-log", daemon=True)
            _forwarder.start()


def _forward() -> None:
    while (lines := _native.next_log_lines()) is not None:
        for level, text, created in lines:
            try:
                _log_line(level, text, created)
            except Exception:
                # a filter or a record factory has raised the exception: `logging` itself catches exceptions
                # of handlers
                if logging.raiseExceptions:
                    traceback.print_exc()


def _log_line(level: int, text: str, created: float) -> None:
    if ENGINE_LOGGER.isEnabledFor(level):
        record = ENGINE_LOGGER.makeRecord(ENGINE_LOGGER.name, level, "stepfast", 0, text, (), None)
        # the record gets the time at which the engine has written the line, not the time at which this thread
        # logs it
        record.relativeCreated += (created - record.created) * 1000
        record.created, record.msecs = created, int(created % 1 * 1000) + 0.0
        ENGINE_LOGGER.handle(record)


def stop() -> None:
    """Passes the remaining lines to the handlers, then ends the thread that forwards them."""
    thread = _forwarder
    if thread is not None:
        _native.set_log_closed(True)
        thread.join(HANDLER_TIMEOUT)


def reset_after_fork() -> None:
    """Forgets the forwarding thread in a forked child, because only the parent has this thread."""
    global _start_lock, _forwarder
    _start_lock, _forwarder = threading.Lock(), None


class ReplayFilter(logging.Filter):
    """A filter that drops log records of replayed workflow code:
    `handler.addFilter(stepfast.ReplayFilter())`.

    A replay runs the code of a workflow again from its beginning. So the code repeats log calls that an
    earlier run has made.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether to keep a log record: False for a record of replayed code.

        Args:
            record: The log record.
        """
        return not getattr(record, "stepfast_is_replaying", False)


__all__ = ["ReplayFilter"]
