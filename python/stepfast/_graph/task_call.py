"""`TaskCall`: the call of a task as a step, and its repetition after a resume."""

from __future__ import annotations

from typing import Any

from stepfast import _native
from stepfast._graph.included_task import IncludedTask
from stepfast._graph.task import Task
from stepfast._workflow.child import call_child_at
from stepfast._workflow.step import run_in_this_thread


class TaskCall:
    """The call of a task in one execution.

    Args:
        shape: The structure of the graph.
        number: The number of the task.
        task: The task.
    """

    def __init__(self, shape: _native.GraphShape, number: int, task: Task[..., Any]) -> None:
        self.task: Task[..., Any] = task
        self._shape, self._number = shape, number

    def run(self, branch: _native.Branch | None, kwargs: dict[str, Any], item: int | None = None) -> Any:
        """Runs the task as a step or a child of `branch`; outside of executions calls its function.

        Args:
            branch: The branch of the execution; None outside of executions.
            kwargs: The arguments by name.
            item: The index of the item, if the task is mapped.

        Returns:
            The value; in async code an awaitable of it.
        """
        if branch is None:
            return self.task.function(**kwargs)
        settings = self.task.settings if item is None else self.task.settings.for_item(item)
        if branch.is_replaying:
            # the recorded outcome may be a failure from before a resume
            repeat = self._repeat_async if branch.is_on_loop else self._repeat
            return repeat(settings, branch, kwargs)
        return self._run_once(settings, branch, kwargs)

    def _run_once(
        self, settings: _native.StepSettings, branch: _native.Branch, kwargs: dict[str, Any]
    ) -> Any:
        if isinstance(self.task, IncludedTask):
            return call_child_at(branch, self.task.workflow, kwargs, self.task.start_options, settings)
        if branch.is_on_loop:
            return branch.awaitable_step(settings, (), (), kwargs)
        return run_in_this_thread(branch.step(settings, (), kwargs), branch, self.task, (), kwargs)

    def _repeat(self, settings: _native.StepSettings, branch: _native.Branch, kwargs: dict[str, Any]) -> Any:
        while True:
            is_repeated = branch.is_repeated_task(settings, self._shape, self._number)
            try:
                return self._run_once(settings, branch, kwargs)
            except Exception:
                if not is_repeated:
                    raise
            settings = settings.for_repetition()

    async def _repeat_async(
        self, settings: _native.StepSettings, branch: _native.Branch, kwargs: dict[str, Any]
    ) -> Any:
        while True:
            is_repeated = branch.is_repeated_task(settings, self._shape, self._number)
            try:
                return await self._run_once(settings, branch, kwargs)
            except Exception:
                if not is_repeated:
                    raise
            settings = settings.for_repetition()


__all__ = ["TaskCall"]
