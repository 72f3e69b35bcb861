"""The standard `logging`, with the execution that a record belongs to."""

from __future__ import annotations

import logging
from typing import Any

from stepfast.current import current

_before = logging.getLogRecordFactory()


def record(*args: Any, **kwargs: Any) -> logging.LogRecord:
    """A log record that knows its execution: `workflow_id`, `workflow` and `step`, empty outside of
    executions, and `is_replaying`."""
    made = _before(*args, **kwargs)
    now = current()
    if now is None:
        made.workflow_id = made.workflow = made.step = ""
        made.is_replaying = False
    else:
        made.workflow_id, made.workflow, made.step = now.workflow_id, now.workflow, now.step or ""
        made.is_replaying = now.is_replaying
    return made


def install() -> None:
    """Lets log records know their executions, beside whatever else makes records."""
    global _before
    factory = logging.getLogRecordFactory()
    if factory is not record:
        _before = factory
        logging.setLogRecordFactory(record)


class ReplayFilter(logging.Filter):
    """Drops what the code of a workflow logs again while it repeats what an earlier run has recorded:
    `handler.addFilter(stepfast.ReplayFilter())`."""

    def filter(self, record: logging.LogRecord) -> bool:
        """False for a record that is to be dropped.

        Args:
            record: What is about to be logged.
        """
        return not getattr(record, "is_replaying", False)


__all__ = ["ReplayFilter"]
