"""Tasks whose making no replay could repeat."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator
from contextvars import copy_context
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final, cast

from stepfast import _native
from stepfast._runtime.branch import here_var
from stepfast.errors import Invalid, Suspended

if TYPE_CHECKING:
    from stepfast._native import Branch


_log: Final = logging.getLogger("stepfast")

#: What a branch is stopped by when its workflow has returned.
_ENDED: Final = 3


def _type_of_closing() -> type:
    async def generator() -> AsyncGenerator[None]:
        yield

    closing = generator().aclose()
    # from 3.13 on it warns if nobody awaits it
    closing.close()
    return type(closing)


#: What closes an async generator.
_CLOSING: Final = _type_of_closing()

#: Where asyncio makes tasks of what it takes from a set: from 3.13 on where an iterator is made.
_ITERATOR: Final[Any] = getattr(asyncio.tasks, "_AsCompletedIterator", None)
_UNORDERED: Final[CodeType] = (_ITERATOR.__init__ if _ITERATOR else asyncio.as_completed).__code__

#: Between there and the factory.
_BETWEEN: Final = frozenset({"create_task", "ensure_future", "_ensure_future", "<setcomp>", "__call__"})

#: Calls of a branch: they have their numbers already.
_NUMBERED: Final = frozenset({"carry_out"})


def refuse_unordered(coro: Any) -> None:
    """Raises `Invalid` if asyncio makes this task in the order of a set, which is that of addresses."""
    frame: FrameType | None = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_code.co_name in _BETWEEN:
        frame = frame.f_back
    if frame is None or frame.f_code is not _UNORDERED:
        return
    if type(coro) is _native.Call:
        return
    code: CodeType | None = getattr(coro, "cr_code", None)
    if code is not None and code.co_name in _NUMBERED and "stepfast" in code.co_filename:
        return
    raise Invalid(
        "asyncio.as_completed makes tasks of coroutines in the order of a set, which no replay can repeat: "
        "give it tasks (asyncio.create_task), in a list"
    )


def tear_off(branch: Branch, coro: Any, kwargs: dict[str, Any]) -> bool:
    """True if the task closes an async generator that was left before its end.

    That comes whenever the collector finds it, perhaps while another execution runs: the code belongs to no
    branch, and may make no durable call.
    """
    if type(coro) is not _CLOSING:
        return False
    context = copy_context()
    context.run(here_var.set, branch.torn_off())
    kwargs["context"] = context
    return True


class Dropped:
    """Tasks that were dropped, as the workflows that made them had returned: of each run, until all of its
    tasks have ended."""

    def __init__(self) -> None:
        self._names: dict[int, list[str]] = {}
        #: Runs whose code has raised, and with that given up its tasks.
        self._raised: set[int] = set()
        #: Tasks that unwind, and that their own code had not cancelled before.
        self._unwinding: set[asyncio.Future[Any]] = set()

    def raised(self, run: int) -> None:
        """The code of a run with tasks has raised."""
        self._raised.add(run)

    def unwinds(self, task: asyncio.Future[Any]) -> None:
        """A task is about to be cancelled, as its run is over."""
        if not cast("Any", task).cancelling():
            self._unwinding.add(task)

    def ended(self, branch: Branch, task: asyncio.Future[Any]) -> None:
        """A task has ended, by itself or not."""
        was_cancelled = task not in self._unwinding and cast("Any", task).cancelling()
        self._unwinding.discard(task)
        if branch.stopped != _ENDED or branch.run in self._raised or was_cancelled:
            return
        if task.cancelled() or isinstance(task.exception(), Suspended):
            name = f"{cast('Any', task).get_name()!r} ({_shown(task)})"
            self._names.setdefault(branch.run, []).append(name)

    def all_ended(self, branch: Branch) -> None:
        """All tasks of a run have ended: logs which were dropped."""
        self._raised.discard(branch.run)
        names = self._names.pop(branch.run, None)
        if names is not None:
            _log.warning(
                "workflow %r (workflow_id %r) has returned before tasks that it has made, which are dropped: "
                "%s. Let it await them",
                branch.workflow,
                branch.workflow_id,
                ", ".join(sorted(names)),
            )


def _shown(task: Any) -> str:
    code: Any = task.get_coro()
    coroutine: Any = cast("Any", code).coroutine if type(code) is _native.Code else code
    if type(coroutine) is _native.Call:
        return f"the call at position {coroutine.path}" if coroutine.path else "a call"
    return str(getattr(coroutine, "__qualname__", coroutine))


__all__ = ["Dropped", "refuse_unordered", "tear_off"]
