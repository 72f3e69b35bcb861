"""Tasks whose making no replay could repeat."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextvars import copy_context
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final

from stepfast import _native
from stepfast.branch import here_var
from stepfast.errors import Invalid

if TYPE_CHECKING:
    from stepfast._native import Branch


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


__all__ = ["refuse_unordered", "tear_off"]
