"""`TaskCall`: the call of a task as a step, and its repetition after a resume."""

from __future__ import annotations

import contextlib
from typing import Any

from stepfast import _native
from stepfast._graph.callback import Callback
from stepfast._graph.included_task import IncludedTask
from stepfast._graph.task import Task, value_of
from stepfast._workflow.child import run_child
from stepfast._workflow.step import run_in_this_thread


class ItemRepeated(Exception):
    """The recorded outcome of an item is a failure from before a resume: the item runs again."""


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

    def run(
        self,
        branch: _native.Branch | None,
        kwargs: dict[str, Any],
        item: int | None = None,
        repetition: int = 0,
    ) -> Any:
        """Runs the task as a step or a child of `branch`; outside of executions calls its function.

        Args:
            branch: The branch of the execution; None outside of executions.
            kwargs: The arguments by name.
            item: The index of the item, if the task is mapped.
            repetition: The number of times that the item was repeated after resumes.

        Returns:
            The value; in async code an awaitable of it.

        Raises:
            ItemRepeated: The item has failed, and its next repetition decides.
        """
        if branch is None:
            return self.task.function(**kwargs)
        settings = self.task.settings if item is None else self.task.settings.for_item(item)
        for _ in range(repetition):
            settings = settings.for_repetition()
        if branch.is_replaying or self.task.has_callbacks:
            # the recorded outcome may be a failure from before a resume
            run_to_end = self._run_to_end_async if branch.is_on_loop else self._run_to_end
            return run_to_end(settings, branch, kwargs, item is not None)
        return self._run_once(settings, branch, kwargs)

    def _run_once(
        self, settings: _native.StepSettings, branch: _native.Branch, kwargs: dict[str, Any]
    ) -> Any:
        if isinstance(self.task, IncludedTask):
            return run_child(self.task.workflow, branch, (), kwargs, self.task.start_options, settings)
        if branch.is_on_loop:
            return branch.awaitable_step(settings, (), (), kwargs)
        return run_in_this_thread(branch.step(settings, (), kwargs), branch, self.task, (), kwargs)

    def _run_to_end(
        self, settings: _native.StepSettings, branch: _native.Branch, kwargs: dict[str, Any], is_item: bool
    ) -> Any:
        """Runs the task with its callbacks, and again if it had failed before a resume."""
        while True:
            is_repeated = branch.is_repeated_task(settings, self._shape, self._number)
            try:
                value = self._run_once(settings, branch, kwargs)
            except Exception as error:
                self._notify(branch, settings, self.task.on_failure, error, is_repeated)
                if not is_repeated:
                    raise
                if is_item:
                    raise ItemRepeated from error
            else:
                self._notify(branch, settings, self.task.on_success, value_of(self.task, value))
                return value
            settings = settings.for_repetition()

    async def _run_to_end_async(
        self, settings: _native.StepSettings, branch: _native.Branch, kwargs: dict[str, Any], is_item: bool
    ) -> Any:
        """Does the same as `_run_to_end` in async code."""
        while True:
            is_repeated = branch.is_repeated_task(settings, self._shape, self._number)
            try:
                value = await self._run_once(settings, branch, kwargs)
            except Exception as error:
                await self._notify_async(branch, settings, self.task.on_failure, error, is_repeated)
                if not is_repeated:
                    raise
                if is_item:
                    raise ItemRepeated from error
            else:
                await self._notify_async(branch, settings, self.task.on_success, value_of(self.task, value))
                return value
            settings = settings.for_repetition()

    def _notify(
        self,
        branch: _native.Branch,
        task_settings: _native.StepSettings,
        callback: Callback | None,
        outcome: object,
        is_repeated: bool = False,
    ) -> None:
        """Runs the callback for the end of the task. A failure of the callback is recorded, and changes
        nothing else. If the task is repeated, its callback has run before: then only the record is read."""
        settings = _settings_after(branch, task_settings, callback, is_repeated)
        if callback is not None and settings is not None:
            with contextlib.suppress(Exception):
                callback.call(branch, settings, outcome)

    async def _notify_async(
        self,
        branch: _native.Branch,
        task_settings: _native.StepSettings,
        callback: Callback | None,
        outcome: object,
        is_repeated: bool = False,
    ) -> None:
        """Does the same as `_notify` in async code."""
        settings = _settings_after(branch, task_settings, callback, is_repeated)
        if callback is not None and settings is not None:
            with contextlib.suppress(Exception):
                await callback.call(branch, settings, outcome)


def _settings_after(
    branch: _native.Branch,
    task_settings: _native.StepSettings,
    callback: Callback | None,
    is_repeated: bool,
) -> _native.StepSettings | None:
    """Returns the settings of the callback for the end of a task; None if it does not run."""
    if callback is None:
        return None
    settings = callback.settings_after(task_settings)
    return None if is_repeated and not branch.has_recorded_task(settings) else settings


__all__ = ["ItemRepeated", "TaskCall"]
