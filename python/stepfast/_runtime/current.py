"""`current`: the execution to which the running code belongs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from stepfast._native import Branch, scheduled_at
from stepfast._runtime.branch import current_code
from stepfast._validation.times import to_datetime_or_none
from stepfast.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Current:
    """The execution to which the running code belongs, and the step if the code is a body.

    Attributes:
        workflow_id: The execution's workflow_id.
        workflow: The name of the execution's workflow.
        step: The name of the step whose body runs; None in the code of the workflow itself.
        path: The position of that step in the execution, such as `3` or `2.1`; None in the code of the
            workflow itself.
        is_replaying: Whether the code of the workflow is being replayed: it receives outcomes that an earlier
            run has recorded.
        attempt: The number of the step's attempt, from 1; None in the code of the workflow itself.
    """

    workflow_id: str
    workflow: str
    step: str | None = None
    path: str | None = None
    is_replaying: bool = False
    attempt: int | None = None

    @property
    def idempotency_key(self) -> str:
        """A key that is the same for every attempt of one call of a step, also after a crash. Each other call
        of a step has another key.

        Give the key to services that perform an action once per key.
        """
        return f"{self.workflow_id}/{self.path or ''}"

    @property
    def scheduled_at(self) -> datetime | None:
        """The instant for which a schedule has started this execution, in UTC; None if no schedule has, or if
        the execution was triggered.

        Code that reports on a day derives the day from this instant, because the execution may begin later.
        """
        return to_datetime_or_none(scheduled_at(self.workflow_id))


def current() -> Current:
    """Returns the execution to which the running code belongs.

    Raises:
        InvalidArgument: The code belongs to no execution. `current_or_none` returns None there.
    """
    here = current_or_none()
    if here is None:
        raise InvalidArgument(
            "current() is called outside of executions: call it in the code of a workflow that an engine "
            "runs, or in its steps; current_or_none() returns None elsewhere"
        )
    return here


def current_or_none() -> Current | None:
    """Returns the execution to which the running code belongs; None outside of executions."""
    here = current_code.get()
    if here is None:
        return None
    if isinstance(here, Branch):
        return Current(here.workflow_id, here.workflow, is_replaying=here.is_replaying)
    branch, call, step, attempt = here
    return Current(branch.workflow_id, branch.workflow, step, call.path, attempt=attempt)


__all__ = ["Current", "current", "current_or_none"]
