"""The execution that the running code belongs to."""

from __future__ import annotations

from dataclasses import dataclass

from stepfast._native import Branch
from stepfast._runtime.branch import here_var


@dataclass(frozen=True, slots=True)
class Current:
    """The execution, and the step, that the running code belongs to.

    Attributes:
        workflow_id: The execution's workflow_id.
        workflow: The name of its workflow.
        step: The name of the step whose body runs; None in the code of the workflow itself.
        path: The position of that step in the execution, such as `3` or `2.1`.
        is_replaying: True while the code of the workflow repeats what an earlier run has recorded.
    """

    workflow_id: str
    workflow: str
    step: str | None = None
    path: str | None = None
    is_replaying: bool = False

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of the step, also after a crash, and for no other step: for services
        that do a thing once per key."""
        return f"{self.workflow_id}/{self.path or ''}"


def current() -> Current | None:
    """The execution that this code belongs to; None outside of executions."""
    here = here_var.get()
    if here is None:
        return None
    if isinstance(here, Branch):
        return Current(here.workflow_id, here.workflow, is_replaying=here.is_replaying)
    branch, call, step = here
    return Current(branch.workflow_id, branch.workflow, step, call.path)


__all__ = ["Current", "current"]
