"""Draws the tree of a graph's execution from its record."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from stepfast._graph.context_values.merge import ContextMerger
from stepfast._graph.graph_run import condition_holds, context_holds
from stepfast._graph.task import Task, value_of

if TYPE_CHECKING:
    from stepfast import _native
    from stepfast._engine.records import Record


def execution_tree(
    shape: _native.GraphShape,
    tasks: dict[str, Task[..., Any]],
    record: Record,
    context: ContextMerger | None,
) -> str:
    """Returns the graph as a tree of text, in which each line has the state of the task in the execution.

    Args:
        shape: The shape of the graph.
        tasks: The tasks of the graph by name.
        record: The record of an execution of the graph.
        context: The context at the begin of the execution; None if the graph has no context.
    """
    values: dict[str, Any] = {}
    for checkpoint in record.checkpoints:
        # the last one of repetitions counts
        if checkpoint.kind == "step" and ".0.0." not in checkpoint.path:
            values[checkpoint.path.partition(".0.")[0]] = checkpoint.value

    numbers = {name: number for number, name in enumerate(tasks)}
    if context is not None:
        for name in shape.topological_order():
            path = str(tasks[name].settings.path)
            if tasks[name].context_parameter is not None and path in values:
                context.apply(numbers[name], values[path])

    def value_holds(reader: str, name: str | None, fields: list[str], sign: str, literal: Any) -> bool | None:
        if name is not None:
            task = tasks[name]
            path = str(task.settings.path)
            return path in values and condition_holds(value_of(task, values[path]), fields, sign, literal)
        try:
            return None if context is None else context_holds(context, numbers[reader], fields, sign, literal)
        except Exception:
            # the task has failed
            return None

    return shape.to_execution_tree(str(record.execution.status), list(_calls(record)), value_holds)


def _calls(record: Record) -> Iterator[tuple[str, str, str, int, str]]:
    """Returns the calls of an execution: path, name, outcome, duration in milliseconds, and error."""
    for attempt in record.attempts:
        yield attempt.path, "", "attempt", 0, ""
    for each in record.checkpoints:
        outcome = {"failed": "failed", "child": "ended"}.get(each.kind, "succeeded")
        error = repr(each.value) if each.kind == "failed" else ""
        yield each.path, each.name, outcome, each.duration // timedelta(milliseconds=1), error


__all__ = ["execution_tree"]
