"""`Callback`: a function that runs after the end of a task, as a step of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from stepfast import _native
from stepfast._validation import bounds
from stepfast._validation.text import short_repr
from stepfast._workflow.step import Step, run_in_this_thread
from stepfast.errors import InvalidArgument


class Callback(Step[..., None]):
    """A callback of a task. It takes by name what its function has parameters for: `task`, the name of the
    task, and `value` or `error`, with which the task has ended.

    Args:
        function: The function, sync or async.
        task: The name of the task.
        graph: The name of the graph.
        has_succeeded: Whether it runs after a success; otherwise after a failure.

    Raises:
        InvalidArgument: The value is no function, or has a parameter of another name.
    """

    def __init__(self, function: Callable[..., object], task: str, graph: str, has_succeeded: bool) -> None:
        option, outcome = ("on_success", "value") if has_succeeded else ("on_failure", "error")
        if not callable(function):
            raise InvalidArgument(
                f"{option} of task {task!r} of graph {graph!r} is {short_repr(function)}, and must be a "
                "function"
            )
        bounds.check_function(option, function)
        self._task, self._outcome, self._has_succeeded = task, outcome, has_succeeded
        self._parameters = list(inspect.signature(function).parameters)
        for name in self._parameters:
            if name not in ("task", outcome):
                raise InvalidArgument(
                    f"{option} of task {task!r} of graph {graph!r} has the parameter {name!r}, and takes "
                    f"only task and {outcome}"
                )
        super().__init__(_without_value(function), name=f"{task}.{option}")

    def settings_after(self, task: _native.StepSettings) -> _native.StepSettings:
        """Returns the settings of the callback for the end of a task with these settings."""
        return self.settings.at_end_of(task, self._has_succeeded)

    def call(self, branch: _native.Branch, settings: _native.StepSettings, outcome: object) -> Any:
        """Calls the callback as a step of `branch`.

        Args:
            branch: The branch of the task.
            settings: The settings of this callback, from `settings_after`.
            outcome: The value or the exception of the task.

        Returns:
            None; in async code an awaitable of None.
        """
        given = {"task": self._task, self._outcome: outcome}
        kwargs = {name: given[name] for name in self._parameters}
        if branch.is_on_loop:
            return branch.awaitable_step(settings, (), (), kwargs)
        return run_in_this_thread(branch.step(settings, (), kwargs), branch, self, (), kwargs)


def _without_value(function: Callable[..., object]) -> Callable[..., Any]:
    """Returns a function that does the same and returns None, which can be recorded."""
    if inspect.iscoroutinefunction(function):

        async def run_async(**kwargs: Any) -> None:
            await function(**kwargs)

        return run_async

    def run(**kwargs: Any) -> None:
        function(**kwargs)

    return run


__all__ = ["Callback"]
