"""The standard `logging`: with the execution that a record belongs to, and with what engines log."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable
from typing import Any, Final

from stepfast import _native
from stepfast._runtime.current import current

#: What engines log.
ENGINE: Final[logging.Logger] = logging.getLogger("stepfast.engine")
#: So long the end of the program waits for handlers, in seconds.
PATIENCE: Final = 1.0

_starting = threading.Lock()
_forwarding: threading.Thread | None = None


class Factory:
    """Makes log records that know their execution: `stepfast_workflow_id`, `stepfast_workflow` and
    `stepfast_step`, empty outside of executions, and `stepfast_is_replaying`.

    Each keeps the factory that was there before it: one that wraps another may be wrapped again.
    """

    def __init__(self, before: Callable[..., logging.LogRecord]) -> None:
        self._before: Final = before

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        # a prefix, as `extra=` of a log call must not have the name of an attribute that is there
        made = self._before(*args, **kwargs)
        now = current()
        if now is None:
            made.stepfast_workflow_id = made.stepfast_workflow = made.stepfast_step = ""
            made.stepfast_is_replaying = False
        else:
            made.stepfast_workflow_id, made.stepfast_workflow = now.workflow_id, now.workflow
            made.stepfast_step, made.stepfast_is_replaying = now.step or "", now.is_replaying
        return made


def install() -> None:
    """Lets log records know their executions, beside whatever else makes records; and brings here what
    engines log, in a thread of its own: they do not wait for handlers."""
    global _forwarding
    with _starting:
        factory = logging.getLogRecordFactory()
        if not isinstance(factory, Factory):
            logging.setLogRecordFactory(Factory(factory))
        if _forwarding is None or not _forwarding.is_alive():
            _native.close_log(False)
            _forwarding = threading.Thread(target=_forward, name="stepfast-log", daemon=True)
            _forwarding.start()


def _forward() -> None:
    while (lines := _native.next_log_lines()) is not None:
        for level, text, created in lines:
            try:
                _tell(level, text, created)
            except Exception:
                # a filter's, or a factory's: those of handlers are caught by `logging`
                if logging.raiseExceptions:
                    traceback.print_exc()


def _tell(level: int, text: str, created: float) -> None:
    if ENGINE.isEnabledFor(level):
        made = ENGINE.makeRecord(ENGINE.name, level, "stepfast", 0, text, (), None)
        # when it happened
        made.relativeCreated += (created - made.created) * 1000
        made.created, made.msecs = created, int(created % 1 * 1000) + 0.0
        ENGINE.handle(made)


def finish() -> None:
    """Lets handlers have what is left."""
    thread = _forwarding
    if thread is not None:
        _native.close_log(True)
        thread.join(PATIENCE)


def forget() -> None:
    """In a forked child: the thread is its parent's."""
    global _starting, _forwarding
    _starting, _forwarding = threading.Lock(), None


class ReplayFilter(logging.Filter):
    """Drops what the code of a workflow logs again while it repeats what an earlier run has recorded:
    `handler.addFilter(stepfast.ReplayFilter())`."""

    def filter(self, record: logging.LogRecord) -> bool:
        """False for a record that is to be dropped.

        Args:
            record: What is about to be logged.
        """
        return not getattr(record, "stepfast_is_replaying", False)


__all__ = ["ReplayFilter"]
