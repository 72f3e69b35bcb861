"""Cleanup of engines that were not closed: at the exit of the program, and in forked children."""

from __future__ import annotations

import atexit
import os
import warnings
import weakref
from typing import TYPE_CHECKING

from stepfast import _native
from stepfast._runtime import log

if TYPE_CHECKING:
    from stepfast._runtime.engine_interface import Host

#: The longest time for which the exit of the program waits for an unreachable database, in seconds.
EXIT_GRACE = 5.0
#: The longest time for which an engine waits for an unreachable database after a drain, in seconds.
CLOSE_GRACE = 10.0

_open_hosts: weakref.WeakSet[Host] = weakref.WeakSet()


def end_at_exit(host: Host) -> None:
    """Registers an engine that ends at the exit of the program, unless it has ended before."""
    _open_hosts.add(host)


@atexit.register
def _end_all() -> None:
    """Ends all engines, and so requeues their running executions. Step bodies in threads end with the
    process."""
    for host in list(_open_hosts):
        host.end(EXIT_GRACE, 0.0)
    log.stop()
    # parked, because the interpreter does not wait for daemon threads, and would end them within native code
    _native.park_other_threads()


def _reset_in_child() -> None:
    """Forgets the engines in a forked child, because they belong to the parent."""
    _native.after_fork_in_child()
    log.reset_after_fork()
    _open_hosts.clear()


os.register_at_fork(
    before=_native.before_fork,
    after_in_parent=_native.after_fork_in_parent,
    after_in_child=_reset_in_child,
)


def warn_unclosed(what: str) -> None:
    """Warns that an engine was not closed. `what` names the engine in the warning."""
    block = "an `async with` block" if "Async" in what else "a `with` block"
    warnings.warn(f"{what} was not closed: use it in {block}, or call close()", ResourceWarning, stacklevel=3)
