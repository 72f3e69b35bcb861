"""Ends that nobody has called `close` for: the program ends, the process is forked, nobody has the engine any
more."""

from __future__ import annotations

import atexit
import os
import warnings
import weakref
from typing import TYPE_CHECKING

from stepfast import _native
from stepfast._runtime import log

if TYPE_CHECKING:
    from stepfast._runtime.host import Host

#: So long the end of the program waits for a database that does not answer, in seconds.
GRACE = 5.0
#: And so long `close`, and what drains.
CLOSING = 10.0

_open: weakref.WeakSet[Host] = weakref.WeakSet()


def keep(opened: Host) -> None:
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
