"""`ContextMerger`: merges the context that a task reads of the changes of the tasks before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple, cast

from stepfast import _native
from stepfast._graph.context_values.fields import ContextFields
from stepfast._validation.text import short_repr
from stepfast._values.decoder import decode
from stepfast._values.encoder import encode
from stepfast.errors import InvalidArgument

#: How a graph merges the values that parallel tasks have written under one key.
MergePolicy = Literal["error", "last", "concatenate", "deep"] | Callable[[str, list[Any]], Any]

#: The number of the input among the writers of a context.
INPUT: Final = -1
_REMOVED: Final = object()

#: The name of the input that contains the first values of the context.
CONTEXT_INPUT: Final = "context"

#: The value of a key, an input or a field that has none.
MISSING: Final = object()


class _Entry(NamedTuple):
    value: Any
    #: The number of the task that wrote it.
    writer: int


#: The entries of each key: several if tasks have written them that do not depend on each other.
_View = dict[str, tuple[_Entry, ...]]


class ContextMerger:
    """The context of one execution of a graph. A task reads the values of the tasks on which it depends,
    directly or through others. If tasks that do not depend on each other have written one key, the policy of
    the graph decides when a task reads the context. Such values are in the topological order of their tasks,
    so each replay has the same order.

    Args:
        graph_name: The name of the graph.
        shape: The structure of the graph.
        names: The names of the tasks, by number.
        policy: How values of parallel tasks are merged.
        initial: The values of the input.
        fields: The fields of the class of the context; None if no task names a class.

    Raises:
        InvalidArgument: The input is no mapping or has a key that is no text, or the class rejects a key or
            a value.
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
        if not isinstance(initial, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] # for programs without types
            raise InvalidArgument(
                f"the input 'context' of graph {graph_name!r} is {short_repr(initial)}, and must be a dict "
                "of the first values by key"
            )
        place = f" of the input of graph {graph_name!r}"
        for key in initial:
            if fields is None and not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance] # for programs without types
                raise InvalidArgument(f"the context key {short_repr(key)}{place} is no text")
        self._initial: _View = {
            key: (_Entry(value if fields is None else fields.checked(key, value, initial, place), INPUT),)
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
        return self._resolve(self._view_before(number))

    def read_key(self, number: int, key: str) -> Any:
        """Returns the value of a key that a task reads; `MISSING` if there is no such key.

        Raises:
            InvalidArgument: As in `read`.
        """
        entries = self._view_before(number).get(key)
        value = _REMOVED if entries is None else self._resolve_key(key, entries)
        return MISSING if value is _REMOVED else value

    def apply(self, number: int, changes: Mapping[str, Any]) -> None:
        """Notes the changes of a task that has succeeded."""
        view = dict(self._view_before(number))
        for key, value in changes["set"].items():
            view[key] = (_Entry(value, number),)
        for key in changes["removed"]:
            view[key] = (_Entry(_REMOVED, number),)
        self._after[number] = view

    def final(self, leaves: list[str]) -> dict[str, Any]:
        """Returns the values by key at the end of the graph.

        Raises:
            InvalidArgument: Parallel tasks have written one key, and the policy is "error"; or the class
                of the context rejects the merged value.
        """
        return self._resolve(self._merge([self._numbers[leaf] for leaf in leaves]))

    def _view_before(self, number: int) -> _View:
        view = self._before.get(number)
        if view is None:
            view = self._before[number] = self._merge(self._dependencies(number))
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

    def _merge(self, tasks: list[int]) -> _View:
        """Returns the context after several tasks."""
        if not tasks:
            return self._initial
        views = [self._view_after(task) for task in tasks]
        if len(views) == 1:
            return views[0]
        merged: _View = {}
        parallel: set[str] = set()
        for view in views:
            for key, entries in view.items():
                known = merged.setdefault(key, entries)
                if known is entries:
                    continue
                writers = {entry.writer for entry in known}
                new = tuple(entry for entry in entries if entry.writer not in writers)
                if new:
                    merged[key] = known + new
                    parallel.add(key)
        for key in parallel:
            merged[key] = self._parallel(merged[key])
        return merged

    def _parallel(self, entries: tuple[_Entry, ...]) -> tuple[_Entry, ...]:
        """Returns the entries whose tasks do not come before the task of another entry, in topological
        order."""
        last = [
            entry
            for entry in entries
            if not any(self._is_before(entry.writer, other.writer) for other in entries if other is not entry)
        ]
        if len(last) > 1:
            last.sort(key=lambda entry: self._order[self._names[entry.writer]])
        return tuple(last)

    def _resolve(self, view: _View) -> dict[str, Any]:
        """Returns the values by key: one value for each key that exists."""
        values = {key: self._resolve_key(key, entries) for key, entries in view.items()}
        return {key: value for key, value in values.items() if value is not _REMOVED}

    def _resolve_key(self, key: str, entries: tuple[_Entry, ...]) -> Any:
        if len(entries) == 1 or self._policy == "last":
            return entries[-1].value
        names = [self._names[entry.writer] for entry in entries]
        if self._policy == "error":
            shown = " and ".join(repr(name) for name in names)
            raise InvalidArgument(
                f"the tasks {shown} of graph {self._graph_name!r} have both written the context key {key!r}, "
                "and none of them depends on another one: write different keys, or give the graph a merge"
            )
        values = [entry.value for entry in entries if entry.value is not _REMOVED]
        if not values:
            return _REMOVED
        if callable(self._policy):
            # a function may change the values, which other tasks read too
            value = self._policy(key, [decode(encode(each)) for each in values])
        else:
            merge = _merge_deeply if self._policy == "deep" else _concatenate
            value = values[0]
            for other in values[1:]:
                value = merge(key, names, value, other)
        if self._fields is not None:
            place = f" of the merge of graph {self._graph_name!r}"
            value = self._fields.checked(key, value, {}, place)
        return value

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


__all__ = ["CONTEXT_INPUT", "MISSING", "ContextMerger", "MergePolicy", "check_policy"]
