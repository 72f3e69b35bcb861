"""`GraphRun`: the tasks of a graph in one execution."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from stepfast import _native
from stepfast._graph.context_values.merge import MISSING, ContextMerger
from stepfast._graph.items import call_for_items
from stepfast._graph.task import Task, value_of
from stepfast._graph.task_call import TaskCall
from stepfast._runtime.branch import current_branch

_COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "contains": operator.contains,
    "exists": lambda value, literal: True,
}


class GraphRun:
    """The tasks of a graph in one execution: which may begin, and the values of those that have ended.

    Args:
        graph_name: The name of the graph.
        shape: The structure of the graph.
        concurrency: The maximum number of tasks that run at a time; None for no limit.
        tasks: The tasks of the graph.
        inputs: The inputs of the execution.
        context: The context of the execution; None if the graph has no context.
    """

    def __init__(
        self,
        graph_name: str,
        shape: _native.GraphShape,
        concurrency: int | None,
        tasks: list[Task[..., Any]],
        inputs: dict[str, Any],
        context: ContextMerger | None,
    ) -> None:
        self.graph_name: str = graph_name
        self.branch: _native.Branch | None = current_branch()
        self._shape, self._tasks, self._inputs = shape, tasks, inputs
        #: The values of the tasks that have succeeded.
        self.values: dict[str, Any] = {}
        #: The failures of tasks that may not fail, by name.
        self._failures: dict[str, Exception] = {}
        self._context = context
        #: The failures of tasks whose rules read a key of the context that cannot be merged, by name.
        self._unreadable: dict[str, Exception] = {}
        self._numbers: dict[str, int] = {task.name: number for number, task in enumerate(tasks)}
        self._progress = _native.GraphProgress(shape, concurrency, self._value_holds)

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
        if task.name in self._unreadable:
            raise self._unreadable.pop(task.name)
        kwargs: dict[str, Any] = {}
        for name in task.parameters:
            value = self.values.get(name, self._inputs.get(name, MISSING))
            if value is not MISSING:
                kwargs[name] = value
        if task.context_parameter is not None and self._context is not None:
            kwargs[task.context_parameter] = self._context.read(number)
        call = TaskCall(self._shape, number, task)
        return call.run(branch, kwargs) if task.map_over is None else call_for_items(call, kwargs)

    def succeed(self, number: int, value: Any) -> None:
        """Notes the value of a task, and its changes of the context."""
        task = self._tasks[number]
        if task.context_parameter is not None and self._context is not None:
            self._context.apply(number, value)
            value = value_of(task, value)
        self.values[task.name] = value
        self._progress.end(number, True, self._value_holds)

    def fail(self, number: int, error: Exception) -> None:
        """Notes the failure of a task."""
        task = self._tasks[number]
        if not task.may_fail:
            self._failures[task.name] = error
            error.add_note(f"task {task.name!r} of graph {self.graph_name!r} failed")
        self._progress.end(number, False, self._value_holds)

    def _value_holds(
        self, reader: str, task: str | None, fields: list[str], sign: str, literal: Any
    ) -> bool | None:
        """Returns whether a condition of a task's rule holds: for the value of a task that has succeeded, or
        for the context that `reader`, the task of the rule, reads. Returns None if it cannot be read."""
        if task is not None:
            return condition_holds(self.values[task], fields, sign, literal)
        assert self._context is not None
        try:
            return context_holds(self._context, self._numbers[reader], fields, sign, literal)
        except Exception as error:
            # also one of the merge function of the graph
            self._unreadable[reader] = error
            return None

    def outcome(self) -> dict[str, Any]:
        """Returns the values of all tasks by name; if the graph has a context, its values by key.

        Raises:
            Exception: The exception of the first task that has failed, in topological order, unless it may
                fail.
        """
        if self._failures:
            first = next(name for name in self._shape.topological_order() if name in self._failures)
            raise self._failures[first]
        return self.values if self._context is None else self._context.final(self._shape.leaves())


def context_holds(context: ContextMerger, reader: int, fields: list[str], sign: str, literal: Any) -> bool:
    """Returns whether a condition holds for the context that a task reads.

    Args:
        context: The context.
        reader: The number of the task.
        fields: The key, and the names of nested fields of its value.
        sign: See `condition_holds`.
        literal: See `condition_holds`.

    Raises:
        Exception: The values of parallel tasks cannot be merged.
    """
    key, *inner = fields
    value = context.read_key(reader, key)
    return value is not MISSING and condition_holds(value, inner, sign, literal)


def condition_holds(value: Any, fields: list[str], sign: str, literal: Any) -> bool:
    """Returns whether a condition holds for a value.

    Args:
        value: The value of the condition's task.
        fields: The names of nested fields of the value, from the outermost one.
        sign: The operator of the comparison.
        literal: The literal with which the value, or its field, is compared.
    """
    for field in fields:
        value = _field_of(value, field)
        if value is MISSING:
            return False
    try:
        return bool(_COMPARISONS[sign](value, literal))
    except TypeError:
        # the values have no order
        return False


def _field_of(value: Any, name: str) -> Any:
    """Returns an item of a mapping, or an attribute of another object; `MISSING` if there is none."""
    return value.get(name, MISSING) if _is_mapping(value) else getattr(value, name, MISSING)


def _is_mapping(value: Any) -> bool:
    """Returns whether the value is a mapping, without narrowing its type for type checkers."""
    return isinstance(value, Mapping)


__all__ = ["GraphRun"]
