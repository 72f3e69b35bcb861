"""Ends that nobody has called `close` for: the program ends, the process is forked, nobody has the engine any
more."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import warnings
import weakref
from collections.abc import Callable
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from stepfast import _native, log

if TYPE_CHECKING:
    from stepfast.opened import Opened

F = TypeVar("F", bound=Callable[..., Any])

#: So long the end of the program waits for a database that does not answer, in seconds.
GRACE = 5.0
#: And so long `close`, and what drains.
CLOSING = 10.0

_open: weakref.WeakSet[Opened] = weakref.WeakSet()


def keep(opened: Opened) -> None:
    """Ends an engine with the program, unless it has ended before."""
    _open.add(opened)


@atexit.register
def _end_all() -> None:
    """What runs is handed back; bodies in threads end with the process."""
    for opened in list(_open):
        opened.end(GRACE, 0.0)
    log.finish()
    # those that Python does not wait for would end within native code
    _native.end_threads()


def _forget_all() -> None:
    """In a forked child: its parent's engines are its parent's."""
    _native.after_fork_in_child()
    log.forget()
    _open.clear()


os.register_at_fork(
    before=_native.before_fork,
    after_in_parent=_native.after_fork_in_parent,
    after_in_child=_forget_all,
)


def warn_unclosed(what: str) -> None:
    """Says that an engine should have been closed."""
    block = "an `async with` block" if "Async" in what else "a `with` block"
    warnings.warn(f"{what} was not closed: use it in {block}, or call close()", ResourceWarning, stacklevel=3)


#: Where the code of executions begins.
_entries: set[CodeType] = set()


def entry(function: F) -> F:
    """Marks a function that is the code of executions, or calls it."""
    code = getattr(function, "__code__", None)
    if code is not None:
        _entries.add(code)
    return function


def is_raised_here(raised: BaseException) -> bool:
    """True if an exception is being handled by the code of an execution that makes a durable call now; False
    if it is by whoever called that."""
    trace = raised.__traceback__
    if trace is None:
        return False
    task = asyncio.current_task() if asyncio._get_running_loop() is not None else None
    code: Any = task.get_coro() if task is not None else None
    first = getattr(code, "cr_frame", None)
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if frame is trace.tb_frame:
            return True
        if frame is first or frame.f_code in _entries:
            return False
        frame = frame.f_back
    return False


def cancellation(unwound: BaseException | None) -> asyncio.CancelledError:
    """The cancellation of a caller for which code has unwound with `unwound`: the same one, for what it was
    cancelled with tells whose it is."""
    while unwound is not None and not isinstance(unwound, asyncio.CancelledError):
        unwound = unwound.__context__
    return asyncio.CancelledError() if unwound is None else unwound
