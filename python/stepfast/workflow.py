"""Workflows: functions that go on after a crash from what is recorded."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast, overload

from stepfast.branch import branch_var
from stepfast.errors import Invalid
from stepfast.handle import settle, settle_here

P = ParamSpec("P")
R = TypeVar("R")


class Workflow(Generic[P, R]):
    """A workflow function. Engines know it by its name. Called in a workflow it runs as a child; elsewhere
    it is a plain call."""

    def __init__(self, function: Callable[P, R], *, name: str | None, eager: bool) -> None:
        self.function = function
        self.name = name or function.__qualname__
        self.eager = eager
        self.is_async = inspect.iscoroutinefunction(function)
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        branch = branch_var.get()
        if branch is None:
            return self.function(*args, **kwargs)
        if self.is_async and not branch.is_on_loop:
            raise Invalid(
                f"workflow {self.name!r} is async, but the one that calls it is not: make that async, or "
                "this sync"
            )
        if branch.is_on_loop and not self.is_async:
            raise Invalid(
                f"workflow {self.name!r} is sync, and waiting for it would block the event loop of an async "
                f"one: make it async, or write await {self.function.__name__}.in_thread(...)"
            )
        opened = branch.home
        call = branch.child(opened.native, opened.number(self), args, kwargs)
        return cast("R", settle(call) if self.is_async else settle_here(call))

    def in_thread(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """For async workflows: the sync workflow as a child, which runs on a thread."""
        branch = branch_var.get()
        if self.is_async or branch is None or not branch.is_on_loop:
            raise Invalid(
                f"in_thread is for async workflows that call sync ones; {self.name!r} is called elsewhere"
            )
        opened = branch.home
        return settle(branch.child(opened.native, opened.number(self), args, kwargs))

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"


_registered: Final[dict[str, Workflow[..., Any]]] = {}


def registered() -> list[Workflow[..., Any]]:
    """All workflows that have been defined, in order of their names."""
    return [_registered[name] for name in sorted(_registered)]


def register(workflow: Workflow[..., Any]) -> None:
    """Keeps a workflow for engines to find."""
    known = _registered.get(workflow.name)
    if known is not None and where(known) != where(workflow):
        raise Invalid(
            f"two workflows are called {workflow.name!r}, in {where(known)} and in {where(workflow)}; "
            "give one of them another name: @workflow(name=...)"
        )
    _registered[workflow.name] = workflow


def where(workflow: Workflow[..., Any]) -> str:
    """Where the workflow is defined."""
    return f"{workflow.function.__module__}.{workflow.function.__qualname__}"


@overload
def workflow(function: Callable[P, R], /) -> Workflow[P, R]: ...


@overload
def workflow(
    *, name: str | None = None, eager: bool = True
) -> Callable[[Callable[P, R]], Workflow[P, R]]: ...


def workflow(
    function: Callable[..., Any] | None = None, /, *, name: str | None = None, eager: bool = True
) -> Any:
    """Makes a workflow of a function.

    Args:
        name: what is recorded, and how its code is found again after a crash or a deploy; the function's
            qualified name by default.
        eager: with False its code sees a step's outcome only when that is durable.
    """

    def made(function: Callable[..., Any]) -> Workflow[..., Any]:
        made = Workflow(function, name=name, eager=eager)
        register(made)
        return made

    return made if function is None else made(function)


__all__ = ["Workflow", "workflow"]
