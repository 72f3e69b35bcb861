"""The execution to which the running code belongs."""

from __future__ import annotations

from dataclasses import dataclass

from stepfast._native import Branch
from stepfast._runtime.branch import current_code


@dataclass(frozen=True, slots=True)
class Current:
    """The execution, and the step, to which the running code belongs.

    Attributes:
        workflow_id: The execution's workflow_id.
        workflow: The name of its workflow.
        step: The name of the step whose body runs; None in the code of the workflow itself.
        path: The position of that step in the execution, such as `3` or `2.1`; None in the code of the
            workflow.
        is_replaying: True while the code of the workflow repeats what an earlier run has recorded.
    """

    workflow_id: str
    workflow: str
    step: str | None = None
    path: str | None = None
    is_replaying: bool = False

    @property
    def idempotency_key(self) -> str:
        """A key that is the same for every attempt of the step, also after a crash, and differs for every
        other step.

        It is meant for services that perform an action once per key.
        """
        return f"{self.workflow_id}/{self.path or ''}"


def current() -> Current | None:
    """Returns the execution to which the running code belongs; None outside of executions."""
    here = current_code.get()
    if here is None:
        return None
    if isinstance(here, Branch):
        return Current(here.workflow_id, here.workflow, is_replaying=here.is_replaying)
    branch, call, step = here
    return Current(branch.workflow_id, branch.workflow, step, call.path)


__all__ = ["Current", "current"]
