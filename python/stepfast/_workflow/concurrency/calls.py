"""Calls that code makes concurrently: awaitables in async code, functions without arguments in sync code."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from inspect import isawaitable
from typing import Any, Final, TypeVar

from stepfast._runtime.branch import current_branch
from stepfast._runtime.event_loop.asyncio_internals import current_loop
from stepfast.errors import InvalidArgument

R = TypeVar("R", covariant=True)

#: The calls that an error message shows, by the name of the function: in async code, and in sync code.
_AWAITED_EXAMPLES: Final = {
    "gather": "await gather(reserve(1), charge(2)) with async steps, reserve.in_thread(1) for a sync one",
    "race": 'await race(receive("paid"), sleep(60)) with async calls, reserve.in_thread(1) for a sync step',
}
_EXAMPLES: Final = {
    "gather": "gather(lambda: reserve(1), lambda: charge(2)), or map(reserve, [1, 2])",
    "race": 'race(lambda: receive("paid"), lambda: sleep(60))',
}


def check_calls(name: str, calls: tuple[Any, ...]) -> bool:
    """Checks the arguments of `gather` or `race`. Returns whether the calls are awaitables.

    Args:
        name: The name of the function.
        calls: Its arguments.

    Raises:
        InvalidArgument: An argument is no call.
    """
    is_async = not calls or any(not callable(call) for call in calls)
    if current_branch() is not None or not calls:
        is_async = is_on_loop()
    for number, call in enumerate(calls, 1):
        if not (isawaitable(call) if is_async else callable(call)):
            raise _not_a_call_error(name, number, calls)
    return is_async


def _not_a_call_error(name: str, number: int, calls: tuple[Any, ...]) -> InvalidArgument:
    """Returns the error for an argument that is no call. The message shows how to write the call.

    Closes all coroutines among the arguments.
    """
    kind = type(calls[number - 1]).__qualname__
    for call in calls:
        if isinstance(call, Coroutine):
            # closed, because no code will await the coroutine
            call.close()
    text = f"argument {number} of {name} has the type {kind}, and must be "
    if is_on_loop():
        return InvalidArgument(f"{text}something to await: write {_AWAITED_EXAMPLES[name]}")
    return InvalidArgument(
        f"{text}a function without arguments: a call that is written with its arguments has been made before "
        f"{name}. Write {_EXAMPLES[name]}"
    )


def make_task(call: Awaitable[R]) -> asyncio.Future[R]:
    """Creates the task of a call. In a workflow the task is a branch from its creation on."""
    return asyncio.ensure_future(call)


def is_failed(task: asyncio.Future[Any]) -> bool:
    """Returns whether a task has ended by a cancellation or an exception."""
    return task.done() and (task.cancelled() or task.exception() is not None)


def is_on_loop() -> bool:
    """Returns whether the caller is async code."""
    branch = current_branch()
    return branch.is_on_loop if branch is not None else current_loop() is not None
