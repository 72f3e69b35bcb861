"""`IncludedTask`: a task that runs a workflow or another graph as a child."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypeVar

from stepfast._graph.task import Task, parameters_of

if TYPE_CHECKING:
    from stepfast._options.start_options import CheckedOptions
    from stepfast._workflow.workflow import Workflow

R = TypeVar("R", covariant=True)


class IncludedTask(Task[..., R]):
    """A task that runs a workflow or another graph as a child, made by `Graph.include`.

    Attributes:
        workflow: The workflow that the task runs.
    """

    def __init__(
        self,
        workflow: Workflow[..., R],
        start_options: CheckedOptions | None,
        **task_options: Any,
    ) -> None:
        # the function of an included graph is known when that graph is complete
        def call(**kwargs: Any) -> R:
            return workflow.function(**kwargs)

        call.__signature__ = inspect.Signature()  # type: ignore[attr-defined] # read by inspect
        super().__init__(call, **task_options)
        self.workflow: Workflow[..., R] = workflow
        #: The options of the child's start; None for the defaults.
        self.start_options: CheckedOptions | None = start_options

    def complete(self) -> None:
        """Completes the task, after its workflow: that may be a graph whose tasks are declared later."""
        self.is_async = self.workflow.is_async
        self.parameters = parameters_of(self.name, self.graph_name, self.workflow.function)


__all__ = ["IncludedTask"]
