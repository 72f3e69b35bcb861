"""Draws the tree of a graph's execution from its record."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from stepfast._graph.graph_run import condition_holds
from stepfast._graph.task import Task, value_of

if TYPE_CHECKING:
    from stepfast import _native
    from stepfast._engine.records import Record


def execution_tree(shape: _native.GraphShape, tasks: dict[str, Task[..., Any]], record: Record) -> str:
    """Returns the graph as a tree of text, in which each line has the state of the task in the execution.

    Args:
        shape: The shape of the graph.
        tasks: The tasks of the graph by name.
        record: The record of an execution of the graph.
    """
    values: dict[str, Any] = {}
    for checkpoint in record.checkpoints:
        # the last one of repetitions counts
        if checkpoint.kind == "step" and ".0.0." not in checkpoint.path:
            values[checkpoint.path.partition(".0.")[0]] = checkpoint.value

    def value_holds(name: str, fields: list[str], sign: str, literal: Any) -> bool:
        task = tasks[name]
        path = str(task.settings.path)
        return path in values and condition_holds(value_of(task, values[path]), fields, sign, literal)

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
