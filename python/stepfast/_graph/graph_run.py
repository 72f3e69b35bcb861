"""`GraphRun`: the tasks of a graph in one execution."""

from __future__ import annotations

from typing import Any, Final

from stepfast import _native
from stepfast._graph.items import call_for_items
from stepfast._graph.task import Task
from stepfast._graph.task_call import TaskCall
from stepfast._runtime.branch import current_branch

#: The value of a parameter that has none: its task has failed or was skipped, or the input was not given.
MISSING: Final = object()


class GraphRun:
    """The tasks of a graph in one execution: which may begin, and the values of those that have ended.

    Args:
        graph_name: The name of the graph.
        shape: The structure of the graph.
        concurrency: The maximum number of tasks that run at a time; None for no limit.
        tasks: The tasks of the graph.
        inputs: The inputs of the execution.
    """

    def __init__(
        self,
        graph_name: str,
        shape: _native.GraphShape,
        concurrency: int | None,
        tasks: list[Task[..., Any]],
        inputs: dict[str, Any],
    ) -> None:
        self.graph_name: str = graph_name
        self.branch: _native.Branch | None = current_branch()
        self._shape, self._tasks, self._inputs = shape, tasks, inputs
        self._progress = _native.GraphProgress(shape, concurrency)
        self._order = {name: number for number, name in enumerate(shape.topological_order())}
        #: The values of the tasks that have succeeded.
        self.values: dict[str, Any] = {}
        self._failures: dict[int, Exception] = {}

    def begin_ready(self) -> list[int]:
        """Notes that all tasks have begun that may begin at the moment, and returns their numbers."""
        ready: list[int] = []
        while (number := self._begin_next()) is not None:
            ready.append(number)
        return ready

    def _begin_next(self) -> int | None:
        if self.branch is None:
            return self._progress.begin_next()
        return self.branch.begin_next_task(self._progress)

    def call(self, number: int, branch: _native.Branch | None) -> Any:
        """Calls a task as a step of `branch`, or for each item if it is mapped. Returns the value; in async
        code an awaitable of it."""
        task = self._tasks[number]
        kwargs: dict[str, Any] = {}
        for name in task.parameters:
            value = self.values.get(name, self._inputs.get(name, MISSING))
            if value is not MISSING:
                kwargs[name] = value
        call = TaskCall(self._shape, number, task)
        return call.run(branch, kwargs) if task.map_over is None else call_for_items(call, kwargs)

    def succeed(self, number: int, value: Any) -> None:
        """Notes the value of a task."""
        self.values[self._tasks[number].name] = value
        self._progress.end(number, True)

    def fail(self, number: int, error: Exception) -> None:
        """Notes the failure of a task."""
        task = self._tasks[number]
        if not task.may_fail:
            self._failures[self._order[task.name]] = error
            error.add_note(f"task {task.name!r} of graph {self.graph_name!r} failed")
        self._progress.end(number, False)

    def outcome(self) -> dict[str, Any]:
        """Returns the values of all tasks, by name.

        Raises:
            Exception: The exception of the first task that has failed, in topological order, unless it may
                fail.
        """
        if self._failures:
            raise self._failures[min(self._failures)]
        return self.values


__all__ = ["GraphRun"]
