"""`ContextMerger`: merges the context that a task reads of the changes of the tasks before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple, cast

from stepfast import _native
from stepfast._graph.context_values.fields import ContextFields
from stepfast._validation.text import short_repr
from stepfast.errors import InvalidArgument

#: How a graph merges the values that parallel tasks have written under one key.
MergePolicy = Literal["error", "last", "concatenate", "deep"] | Callable[[str, list[Any]], Any]

#: The number of the input among the writers of a context.
INPUT: Final = -1
_REMOVED: Final = object()


class _Entry(NamedTuple):
    value: Any
    #: The number of the task that wrote it.
    writer: int


_View = dict[str, _Entry]


class ContextMerger:
    """The context of one execution of a graph. A task reads the values of the tasks on which it depends,
    directly or through others. If tasks that do not depend on each other have written one key, the policy of
    the graph decides. Such values are in the topological order of their tasks, so each replay has
    the same order.

    Args:
        graph_name: The name of the graph.
        shape: The structure of the graph.
        names: The names of the tasks, by number.
        policy: How values of parallel tasks are merged.
        initial: The values of the input.
        fields: The fields of the class of the context; None if no task names a class.

    Raises:
        InvalidArgument: A value of the input has a key that is no field, or a field rejects the value.
    """

    def __init__(
        self,
        graph_name: str,
        shape: _native.GraphShape,
        names: list[str],
        policy: MergePolicy,
        initial: Mapping[str, Any],
        fields: ContextFields | None,
    ) -> None:
        self._graph_name, self._shape, self._names, self._policy = graph_name, shape, names, policy
        self._numbers: dict[str, int] = {name: number for number, name in enumerate(names)}
        self._order: dict[str, int] = {name: at for at, name in enumerate(shape.topological_order())}
        self._fields = fields
        place = f" of the input of graph {graph_name!r}"
        self._initial: _View = {
            key: _Entry(value if fields is None else fields.checked(key, value, initial, place), INPUT)
            for key, value in initial.items()
        }
        self._before: dict[int, _View] = {}
        self._after: dict[int, _View] = {}
        self._ancestors: dict[int, set[int]] = {}

    def read(self, number: int) -> dict[str, Any]:
        """Returns the values by key that a task reads.

        Raises:
            InvalidArgument: Parallel tasks have written one key, and the policy is "error"; or the class
                of the context rejects the merged value.
        """
        return _values(self._view_before(number))

    def apply(self, number: int, changes: Mapping[str, Any]) -> None:
        """Notes the changes of a task that has succeeded."""
        view = dict(self._view_before(number))
        for key, value in changes["set"].items():
            view[key] = _Entry(value, number)
        for key in changes["removed"]:
            view[key] = _Entry(_REMOVED, number)
        self._after[number] = view

    def final(self, leaves: list[str]) -> dict[str, Any]:
        """Returns the values by key at the end of the graph.

        Raises:
            InvalidArgument: Parallel tasks have written one key, and the policy is "error"; or the class
                of the context rejects the merged value.
        """
        return _values(self._merge([self._numbers[leaf] for leaf in leaves], None))

    def _view_before(self, number: int) -> _View:
        view = self._before.get(number)
        if view is None:
            view = self._before[number] = self._merge(self._dependencies(number), number)
        return view

    def _view_after(self, number: int) -> _View:
        """Returns the context after a task. A task that has failed or was skipped changes nothing."""
        waiting = [number]
        while waiting:
            task = waiting[-1]
            if task in self._after:
                waiting.pop()
                continue
            missing = [each for each in self._dependencies(task) if each not in self._after]
            if missing:
                waiting += missing
                continue
            self._after[task] = self._view_before(task)
        return self._after[number]

    def _dependencies(self, number: int) -> list[int]:
        names = self._shape.dependencies(self._names[number]) or []
        return [self._numbers[name] for name in names]

    def _merge(self, tasks: list[int], reader: int | None) -> _View:
        """Returns the merged context of several tasks, for a task or for the end of the graph."""
        if not tasks:
            return self._initial
        views = [self._view_after(task) for task in tasks]
        if len(views) == 1:
            return views[0]
        merged: _View = {}
        rivals: dict[str, dict[int, _Entry]] = {}
        for view in views:
            for key, entry in view.items():
                first = merged.setdefault(key, entry)
                if first.writer != entry.writer:
                    rivals.setdefault(key, {first.writer: first})[entry.writer] = entry
        for key, by_writer in rivals.items():
            merged[key] = self._decide(key, by_writer, reader)
        return merged

    def _decide(self, key: str, by_writer: dict[int, _Entry], reader: int | None) -> _Entry:
        """Returns the entry of a key for which several tasks are candidates."""
        writers = [
            writer
            for writer in by_writer
            if not any(self._is_before(writer, other) for other in by_writer if other != writer)
        ]
        writers.sort(key=lambda writer: self._order[self._names[writer]])
        if len(writers) == 1:
            return by_writer[writers[0]]
        if self._policy == "last":
            return by_writer[writers[-1]]
        names = [self._names[writer] for writer in writers]
        if self._policy == "error":
            shown = " and ".join(repr(name) for name in names)
            raise InvalidArgument(
                f"the tasks {shown} of graph {self._graph_name!r} have both written the context key {key!r}, "
                "and none of them depends on another one: write different keys, or give the graph a merge"
            )
        values = [by_writer[writer].value for writer in writers if by_writer[writer].value is not _REMOVED]
        value: Any = _REMOVED
        if callable(self._policy):
            value = self._policy(key, values) if values else _REMOVED
        elif values:
            merge = _merge_deeply if self._policy == "deep" else _concatenate
            value = values[0]
            for other in values[1:]:
                value = merge(key, names, value, other)
        if self._fields is not None and value is not _REMOVED:
            place = f" of the merge of graph {self._graph_name!r}"
            value = self._fields.checked(key, value, {}, place)
        # without a reader the entry is not merged again
        return _Entry(value, INPUT if reader is None else reader)

    def _is_before(self, writer: int, other: int) -> bool:
        """Returns whether a task is among the direct and indirect dependencies of another one."""
        if writer == INPUT or other == INPUT:
            return writer == INPUT
        ancestors = self._ancestors.get(other)
        if ancestors is None:
            ancestors = self._ancestors[other] = set()
            waiting = [other]
            while waiting:
                for dependency in self._dependencies(waiting.pop()):
                    if dependency not in ancestors:
                        ancestors.add(dependency)
                        waiting.append(dependency)
        return writer in ancestors


def check_policy(policy: Any) -> MergePolicy:
    """Returns a merge policy.

    Raises:
        InvalidArgument: The value is no policy.
    """
    if callable(policy) or policy in ("error", "last", "concatenate", "deep"):
        return cast("MergePolicy", policy)
    raise InvalidArgument(
        f"merge is {short_repr(policy)}, and must be 'error', 'last', 'concatenate', 'deep', or a function "
        "of a key and its values"
    )


def _values(view: _View) -> dict[str, Any]:
    return {key: entry.value for key, entry in view.items() if entry.value is not _REMOVED}


def _concatenate(key: str, names: list[str], one: Any, other: Any) -> Any:
    if any(_are_both(cls, one, other) for cls in (list, tuple, str)):
        return one + other
    raise _unmergeable(key, names, one, other, "two lists, tuples or texts")


def _merge_deeply(key: str, names: list[str], one: Any, other: Any) -> Any:
    """Merges dicts key by key, and concatenates lists. Of other values the later one remains."""
    if _are_both(dict, one, other):
        merged: dict[Any, Any] = dict(one)
        for name, value in other.items():
            merged[name] = _merge_deeply(key, names, merged[name], value) if name in merged else value
        return merged
    return one + other if _are_both(list, one, other) else other


def _are_both(cls: type, one: Any, other: Any) -> bool:
    """Returns whether both values are instances of a class. Type checkers do not narrow their types."""
    return isinstance(one, cls) and isinstance(other, cls)


def _unmergeable(key: str, names: list[str], one: Any, other: Any, kinds: str) -> InvalidArgument:
    shown = " and ".join(repr(name) for name in names)
    return InvalidArgument(
        f"the tasks {shown} have written the context key {key!r} with {short_repr(one)} and "
        f"{short_repr(other)}, and only {kinds} are concatenated"
    )


__all__ = ["ContextMerger", "MergePolicy", "check_policy"]
