"""Calls a task for each item of a list."""

from __future__ import annotations

from collections.abc import Coroutine
from inspect import isawaitable
from typing import Any, Final, cast

from stepfast._graph.task import Task
from stepfast._graph.task_call import ItemRepeated, TaskCall
from stepfast._runtime.branch import current_branch
from stepfast._validation.text import short_repr
from stepfast._workflow.concurrency.calls import is_on_loop
from stepfast._workflow.concurrency.gather import map
from stepfast.errors import InvalidArgument

#: The maximum number of items of an async task that run at a time by default.
DEFAULT_ITEMS: Final = 1_000

#: The value of an item, or its exception and None.
_Outcome = tuple[Any, Exception | None]


def call_for_items(call: TaskCall, kwargs: dict[str, Any]) -> Any:
    """Calls a task for each item, concurrently. Each call is a branch with a step of its own.

    Args:
        call: The call of a task that is mapped.
        kwargs: Its arguments by name. The argument that it is mapped over is the list of the items.

    Returns:
        The values, in the order of the items; in async code an awaitable of them.

    Raises:
        InvalidArgument: The value over which the task is mapped is no list or tuple.
        Exception: The exception of the first item that has failed, after the ends of all items.
    """
    task = call.task
    name = str(task.map_over)
    items = kwargs[name]
    if not isinstance(items, list | tuple):
        raise InvalidArgument(
            f"task {task.name!r} is mapped over {name!r}, which has returned {short_repr(items)}, and must "
            "return a list"
        )
    items = cast("list[Any]", items)
    if is_on_loop():
        return _call_async(call, name, items, kwargs)

    def call_item(numbered_item: tuple[int, int]) -> _Outcome:
        index, repetition = numbered_item
        try:
            return call.run(current_branch(), {**kwargs, name: items[index]}, index, repetition), None
        except Exception as error:
            return None, error

    outcomes: list[_Outcome] = [(None, None)] * len(items)
    remaining = [(index, 0) for index in range(len(items))]
    while remaining:
        _note(outcomes, remaining, map(call_item, remaining, concurrency=task.max_items))
        remaining = _repeated(outcomes, remaining)
    return _values(task, outcomes)


def _call_async(
    call: TaskCall, name: str, items: list[Any], kwargs: dict[str, Any]
) -> Coroutine[object, None, list[Any]]:
    async def call_item(numbered_item: tuple[int, int]) -> _Outcome:
        index, repetition = numbered_item
        try:
            value = call.run(current_branch(), {**kwargs, name: items[index]}, index, repetition)
            return await value if isawaitable(value) else value, None
        except Exception as error:
            return None, error

    async def call_all() -> list[Any]:
        outcomes: list[_Outcome] = [(None, None)] * len(items)
        remaining = [(index, 0) for index in range(len(items))]
        while remaining:
            ended = await map(call_item, remaining, concurrency=call.task.max_items or DEFAULT_ITEMS)
            _note(outcomes, remaining, ended)
            remaining = _repeated(outcomes, remaining)
        return _values(call.task, outcomes)

    return call_all()


def _note(outcomes: list[_Outcome], numbered: list[tuple[int, int]], ended: list[_Outcome]) -> None:
    for (index, _), outcome in zip(numbered, ended, strict=True):
        outcomes[index] = outcome


def _repeated(outcomes: list[_Outcome], numbered: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the items that run again, each with its next repetition. They run after the others, and hold
    back no recorded item."""
    return [(n, repetition + 1) for n, repetition in numbered if isinstance(outcomes[n][1], ItemRepeated)]


def _values(task: Task[..., Any], outcomes: list[_Outcome]) -> list[Any]:
    for index, (_, error) in enumerate(outcomes):
        if error is not None:
            error.add_note(f"item {index + 1} of {len(outcomes)} of task {task.name!r} failed")
            raise error
    return [value for value, _ in outcomes]


__all__ = ["call_for_items"]
