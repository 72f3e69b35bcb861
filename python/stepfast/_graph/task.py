"""Tasks: the steps of a graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Final, ParamSpec, TypeVar, cast

from stepfast import _native
from stepfast._graph.callback import Callback
from stepfast._graph.context_values.context import TaskContext, context_parameter, recording_changes
from stepfast._graph.context_values.fields import ContextFields
from stepfast._workflow.step import Step
from stepfast.errors import InvalidArgument

P = ParamSpec("P")
R = TypeVar("R", covariant=True)

_BY_NAME: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
#: The advice of error messages about parameters of other kinds.
_ADVICE: Final = {
    inspect.Parameter.POSITIONAL_ONLY: "leave out the / of the function",
    inspect.Parameter.VAR_POSITIONAL: "give each parameter a name of its own",
    inspect.Parameter.VAR_KEYWORD: "give each parameter a name of its own",
}


class Task(Step[P, R]):
    """A task of a graph, made by `Graph.task`. The call of a task is a plain call of its function: only the
    graph runs it as a step.

    Attributes:
        name: The name of the task, unique in its graph.
        graph_name: The name of the graph.
        after: The names of the tasks on which this one depends without taking their values.
        rule: The condition on which the task runs.
        parameters: The parameters of the function, by name. Each takes the value of the task of this name, or
            else an input of the graph.
        may_fail: Whether the graph completes although the task has failed.
        map_over: The name of the task over whose list this one is mapped; None if it is not mapped.
        max_items: The maximum number of items that run at a time; None for the default.
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        graph: str,
        after: tuple[str, ...],
        rule: _native.Rule,
        may_fail: bool,
        map_over: str | None,
        max_items: int | None,
        on_success: Callable[..., object] | None,
        on_failure: Callable[..., object] | None,
        **step_options: Any,
    ) -> None:
        #: The name of the parameter that takes the context of the graph; None if the task takes none.
        self.context_parameter: str | None = context_parameter(function)
        #: The annotation of that parameter; None if there is none.
        self.context_annotation: Any = None
        #: The fields of the class of the context; None if it has no class, or until the graph is complete.
        self.context_fields: ContextFields | None = None
        self._plain_function: Callable[P, R] = function
        if self.context_parameter is not None:
            body = cast(
                "Callable[P, R]", recording_changes(function, self.context_parameter, self._make_context)
            )
        else:
            body = function
        super().__init__(body, **step_options)
        self.graph_name: str = graph
        self.after: tuple[str, ...] = after
        self.rule: _native.Rule = rule
        self.may_fail: bool = may_fail
        self.map_over: str | None = map_over
        self.max_items: int | None = max_items
        #: The functions that run after the end of the task; None if there are none.
        self.on_success: Callback | None = None
        self.on_failure: Callback | None = None
        if on_success is not None:
            self.on_success = Callback(on_success, self.name, graph, True)
        if on_failure is not None:
            self.on_failure = Callback(on_failure, self.name, graph, False)
        self.has_callbacks: bool = on_success is not None or on_failure is not None
        #: The parameters of the function: each takes the value of a task, or an input of the graph.
        self.parameters: dict[str, inspect.Parameter] = parameters_of(self.name, graph, function)
        if self.context_parameter is not None:
            self.context_annotation = self.parameters.pop(self.context_parameter).annotation

    def _make_context(self, values: dict[str, Any]) -> TaskContext:
        return TaskContext(
            values, self.context_fields, f" of task {self.name!r} of graph {self.graph_name!r}"
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._plain_function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.name} of graph {self.graph_name}>"


def dependencies_of(task: Task[..., Any], task_names: Iterable[str]) -> list[str]:
    """Returns the names of the tasks on which a task depends, by `after` and by its parameters."""
    known = set(task_names)
    return [*task.after, *(name for name in task.parameters if name in known)]


def value_of(task: Task[..., Any], outcome: Any) -> Any:
    """Returns the value of a task, without the changes of the context that are recorded with it."""
    return outcome if task.context_parameter is None else outcome["value"]


def needs_loop(task: Task[..., Any]) -> bool:
    """Returns whether a task or one of its callbacks is async."""
    callbacks = (task.on_success, task.on_failure)
    return task.is_async or any(callback is not None and callback.is_async for callback in callbacks)


def parameters_of(task: str, graph: str, function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Returns the parameters of a task's function, by name.

    Raises:
        InvalidArgument: A parameter has no name by which it can take a value.
    """
    parameters = inspect.signature(function).parameters
    for parameter in parameters.values():
        if parameter.kind not in _BY_NAME:
            raise InvalidArgument(
                f"task {task!r} of graph {graph!r} has the parameter {parameter}, which takes no value by a "
                f"name: {_ADVICE[parameter.kind]}"
            )
    return dict(parameters)


__all__ = ["Task", "dependencies_of", "needs_loop", "parameters_of", "value_of"]
