"""Finds the class of the context of a graph in the annotations of its tasks."""

from __future__ import annotations

import inspect
import typing
from typing import Any

from stepfast._graph.annotation_types import evaluate
from stepfast._graph.context_values.context import Context
from stepfast._graph.context_values.fields import ContextFields, fields_of
from stepfast._graph.task import Task
from stepfast.errors import InvalidArgument


def find_context_fields(graph_name: str, tasks: list[Task[..., Any]]) -> ContextFields | None:
    """Returns the fields of the class that the tasks of a graph name for their context; None if no task names
    a class.

    Args:
        graph_name: The name of the graph, for error messages.
        tasks: The tasks of the graph.

    Raises:
        InvalidArgument: Two tasks name different classes, a class has no fields, or an annotation cannot be
            evaluated.
    """
    first: Task[..., Any] | None = None
    named: Any = Any
    for task in tasks:
        given = _class_named_by(task)
        if given is Any:
            continue
        if first is not None and given != named:
            raise InvalidArgument(
                f"the tasks {first.name!r} and {task.name!r} of graph {graph_name!r} share one context, but "
                f"the first one names the class {_text(named)}, and the second one {_text(given)}: name the "
                "same class in both annotations"
            )
        first, named = first or task, given
    if first is None:
        return None
    try:
        return fields_of(named)
    except InvalidArgument as error:
        error.add_note(f"task {first.name!r} of graph {graph_name!r} names this class")
        raise


def _class_named_by(task: Task[..., Any]) -> Any:
    """Returns the class that a task names for its context; `Any` if it names none."""
    annotation = task.context_annotation
    if annotation is None or annotation is Context or (isinstance(annotation, str) and "[" not in annotation):
        return Any
    function: Any = inspect.unwrap(task.function)
    evaluated = evaluate(annotation, getattr(function, "__globals__", {}))
    if typing.get_origin(evaluated) is not Context:
        raise InvalidArgument(
            f"the annotation {annotation} of task {task.name!r} of graph {task.graph_name!r} cannot be "
            "evaluated: define or import its names at the top level of the module"
        )
    return typing.get_args(evaluated)[0]


def _text(given: Any) -> str:
    return inspect.formatannotation(given)


__all__ = ["find_context_fields"]
