"""Compares the annotations of the tasks of a graph, before anything runs."""

from __future__ import annotations

import collections.abc
import inspect
import itertools
import numbers
import types
import typing
from collections.abc import Callable
from typing import Any, Final, cast

from stepfast._graph.annotation_types import class_of, evaluate, members_of
from stepfast._graph.included_task import IncludedTask
from stepfast._graph.task import Task
from stepfast.errors import InvalidArgument

#: The containers whose arguments are the types of what they contain.
_CONTAINERS: Final[tuple[type, ...]] = (
    list,
    set,
    frozenset,
    dict,
    collections.deque,
    collections.defaultdict,
    collections.OrderedDict,
    collections.abc.Iterable,
    collections.abc.Iterator,
    collections.abc.Collection,
    collections.abc.Reversible,
    collections.abc.Sequence,
    collections.abc.MutableSequence,
    collections.abc.Set,
    collections.abc.MutableSet,
    collections.abc.Mapping,
    collections.abc.MutableMapping,
)
#: Type checkers accept these classes in place of each other, unless they are strict.
_BYTES: Final = (bytes, bytearray, memoryview)


def check_annotations(graph_name: str, tasks: list[Task[..., Any]]) -> None:
    """Checks that the annotations of the tasks agree: of each value with the parameter that takes it, and of
    parameters that take the same input.

    Two annotations disagree only if no value can have both types, except empty containers. Annotations that
    cannot be evaluated agree with all others. So do those of a function that a decorator has wrapped, because
    the wrapper may convert its arguments and its value.

    Args:
        graph_name: The name of the graph, for the error message.
        tasks: The tasks of the graph, which are complete.

    Raises:
        InvalidArgument: Two annotations disagree.
    """
    by_name = {task.name: task for task in tasks}
    reader = _AnnotationReader()
    inputs: dict[str, list[tuple[str, Any]]] = {}
    for task in tasks:
        for name, parameter in task.parameters.items():
            expected = reader.type_of(task, parameter.annotation)
            if expected is Any:
                continue
            if name in by_name:
                _check_value(graph_name, reader, task, by_name[name], expected)
            else:
                _check_input(graph_name, task, name, expected, inputs.setdefault(name, []))


class _AnnotationReader:
    """Evaluates annotations. `Any` stands for an annotation that is missing or cannot be evaluated."""

    def __init__(self) -> None:
        #: The types of annotations, by the annotation and the namespace of its function.
        self._types: dict[tuple[Any, int], Any] = {}
        #: The types of the values of tasks, by the name of the task.
        self._value_types: dict[str, Any] = {}

    def type_of(self, task: Task[..., Any], annotation: Any) -> Any:
        """Returns the type of an annotation in the function of a task."""
        function = _function_of(task)
        if annotation is inspect.Parameter.empty or hasattr(function, "__wrapped__"):
            return Any
        # the annotations of an included graph come from the namespaces of its tasks
        has_own_namespace = inspect.isfunction(function) and not hasattr(function, "__signature__")
        if isinstance(annotation, str) and not has_own_namespace:
            return Any
        namespace: dict[str, Any] = function.__globals__ if has_own_namespace else {}
        key = (annotation, id(namespace) if has_own_namespace else 0)
        try:
            if key not in self._types:
                self._types[key] = evaluate(annotation, namespace)
            return self._types[key]
        except TypeError:
            # the annotation has no hash, as `Annotated[int, []]`
            return evaluate(annotation, namespace)

    def value_type(self, task: Task[..., Any]) -> Any:
        """Returns the type of the value of a task. The value of a mapped task is a list."""
        if task.name not in self._value_types:
            annotations: dict[str, Any] = getattr(_function_of(task), "__annotations__", {})
            value = self.type_of(task, annotations.get("return", inspect.Parameter.empty))
            self._value_types[task.name] = (
                value if task.map_over is None else types.GenericAlias(list, (value,))
            )
        return self._value_types[task.name]


def _function_of(task: Task[..., Any]) -> Callable[..., Any]:
    """Returns the function of a task as the program has declared it."""
    if isinstance(task, IncludedTask):
        return task.workflow.function
    # the body of a task that takes the context wraps its function
    body: Any = task.function
    return cast("Callable[..., Any]", body if task.context_parameter is None else body.__wrapped__)


def _check_value(
    graph_name: str,
    reader: _AnnotationReader,
    task: Task[..., Any],
    dependency: Task[..., Any],
    expected: Any,
) -> None:
    """Checks a parameter that takes the value of another task, or an item of it."""
    value = reader.value_type(dependency)
    taken = f"takes the value of {dependency.name!r} as {_text(expected)}"
    if task.map_over == dependency.name:
        items = [_item_type(each) for each in members_of(value) if _is_possible_list(each)]
        if not items:
            raise InvalidArgument(
                f"task {task.name!r} of graph {graph_name!r} is mapped over {dependency.name!r}, which "
                f"returns {_text(value)}, and must return a list: correct one of the two tasks"
            )
        if any(_can_agree(item, expected) for item in items):
            return
        taken = f"takes an item of {dependency.name!r} as {_text(expected)}"
    elif _can_agree(value, expected):
        return
    raise InvalidArgument(
        f"the parameter {dependency.name!r} of task {task.name!r} of graph {graph_name!r} {taken}, but "
        f"{dependency.name!r} returns {_text(value)}: correct one of the two annotations"
    )


def _check_input(
    graph_name: str, task: Task[..., Any], name: str, expected: Any, declared: list[tuple[str, Any]]
) -> None:
    """Checks a parameter that takes an input against the types that tasks before have declared for it."""
    for other, before in declared:
        if not _can_agree(before, expected):
            raise InvalidArgument(
                f"the input {name!r} of graph {graph_name!r} is {_text(before)} in task {other!r}, and "
                f"{_text(expected)} in task {task.name!r}: correct one of the two annotations, or rename one "
                "of the parameters"
            )
    if all(before != expected for _, before in declared):
        declared.append((task.name, expected))


def _can_agree(first: Any, second: Any) -> bool:
    """Returns whether a value may have both types."""
    return any(
        _can_members_agree(one, other)
        for one, other in itertools.product(members_of(first), members_of(second))
    )


def _can_members_agree(first: Any, second: Any) -> bool:
    """Returns whether a value may have both types, neither of which is a union."""
    if first == second or first is Any or second is Any:
        return True
    if not _can_classes_agree(class_of(first), class_of(second)):
        return False
    return _can_arguments_agree(first, second)


def _can_classes_agree(first: type, second: type) -> bool:
    classes = (first, second)
    if any(getattr(each, "_is_protocol", False) for each in classes):
        return True
    if all(_is_subclass(each, numbers.Number) for each in classes):
        # an int is accepted as a float, and a number of another library as one of Python
        return True
    if all(issubclass(each, _BYTES) for each in classes) or all(inspect.isabstract(each) for each in classes):
        return True
    return _is_subclass(first, second) or _is_subclass(second, first) or _have_common_subclass(first, second)


def _is_subclass(first: type, second: type) -> bool:
    try:
        return issubclass(first, second)
    except TypeError:
        # the metaclass does not support the question
        return True


def _have_common_subclass(first: type, second: type) -> bool:
    """Returns whether a class derives from both, among the classes that exist when the graph is checked."""
    if inspect.isabstract(first):
        # a class may be registered as a subclass of an abstract one, which does not list it
        first, second = second, first
    seen: set[type] = set()
    remaining = [first]
    while remaining:
        subclasses: list[type] = type.__subclasses__(remaining.pop())
        for each in subclasses:
            if each not in seen:
                if _is_subclass(each, second):
                    return True
                seen.add(each)
                remaining.append(each)
    return False


def _can_arguments_agree(first: Any, second: Any) -> bool:
    """Returns whether what two types contain may agree. Their classes agree."""
    first_class, second_class = class_of(first), class_of(second)
    first_arguments, second_arguments = typing.get_args(first), typing.get_args(second)
    if not first_arguments or not second_arguments:
        return True
    if first_class is tuple and second_class is tuple:
        return _can_tuples_agree(first_arguments, second_arguments)
    if first_class is tuple or second_class is tuple:
        return _can_agree(_item_type(first), _item_type(second))
    if first_class not in _CONTAINERS or second_class not in _CONTAINERS:
        return True
    # a mapping has two arguments, and as an iterable it has one, the type of its keys
    return all(_can_agree(one, other) for one, other in zip(first_arguments, second_arguments, strict=False))


def _can_tuples_agree(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    if _is_any_length(first) or _is_any_length(second):
        return _can_agree(_item_union(first), _item_union(second))
    return len(first) == len(second) and all(map(_can_agree, first, second))


def _is_any_length(arguments: tuple[Any, ...]) -> bool:
    """Returns whether a tuple with these arguments may have any length."""
    return Ellipsis in arguments or any(_is_unpacked(each) for each in arguments)


def _is_unpacked(argument: Any) -> bool:
    return typing.get_origin(argument) is typing.Unpack or getattr(argument, "__unpacked__", False)


def _item_union(arguments: tuple[Any, ...]) -> Any:
    """Returns the type of the items of a tuple with these arguments."""
    items = [each for each in arguments if each is not Ellipsis]
    if not items or any(map(_is_unpacked, items)):
        return Any
    return typing.Union[tuple(items)]  # noqa: UP007 # the members are known at run time only


def _item_type(member: Any) -> Any:
    """Returns the type of the items of a list or another container."""
    arguments = typing.get_args(member)
    if class_of(member) is tuple:
        return _item_union(arguments)
    return arguments[0] if arguments and class_of(member) in _CONTAINERS else Any


def _is_possible_list(member: Any) -> bool:
    """Returns whether a value of this type may be a list or a tuple, over which a task can be mapped."""
    if member is Any:
        return True
    given = class_of(member)
    return _can_classes_agree(given, list) or _can_classes_agree(given, tuple)


def _text(given: Any) -> str:
    return inspect.formatannotation(given)


__all__ = ["check_annotations"]
