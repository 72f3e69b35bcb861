"""Sets up a child process: it ignores SIGINT and SIGTERM, and ends when the program ends."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import threading
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any, Final

#: The `oom_score_adj` of a child. When memory runs out, the kernel kills the child rather than a program of
#: the same size.
OOM_SCORE: Final = 500

_PR_SET_PDEATHSIG: Final = 1


def set_up_child(connection: Connection[Any, Any], parent: int) -> None:
    """Prepares this child process, once.

    The parameter `parent` is the process id of the program.
    """
    os.set_inheritable(connection.fileno(), False)
    # a fork of this process closes its copy of the connection: an open copy would hide the end of this
    # process from the program
    os.register_at_fork(after_in_child=connection.close)
    ignore_signals()
    if not kill_with_parent(parent):
        threading.Thread(target=exit_with_connection, args=(connection.fileno(),), daemon=True).start()
    prefer_for_oom_kill()
    # prints the position in the code if a body crashes the interpreter
    with contextlib.suppress(Exception):
        faulthandler.enable()


def prefer_for_oom_kill() -> None:
    """Makes the kernel kill this process before others when memory runs out."""
    file = "/proc/self/oom_score_adj"
    with contextlib.suppress(OSError):
        with open(file) as score:
            now = int(score.read())
        if now < OOM_SCORE:
            with open(file, "w") as score:
                score.write(str(OOM_SCORE))


def ignore_signals() -> None:
    """Ignores SIGINT and SIGTERM, which terminals and supervisors often send to all processes at once.

    The program decides when its children end. So a signal to all processes does not fail the attempt that
    runs in a child.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        pass

    def back_to_default() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
    # a handler instead of SIG_IGN, because programs that a body starts would inherit SIG_IGN
    os.register_at_fork(after_in_child=back_to_default)


def kill_with_parent(parent: int) -> bool:
    """Makes the kernel kill this process when the thread that started it ends. Returns False if the system
    does not support that."""
    try:
        import ctypes

        if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
            return False
    except (ImportError, AttributeError, OSError):
        return False
    if os.getppid() != parent:
        # the parent has ended before the kernel knew of the request
        os._exit(1)
    return True


def exit_with_connection(descriptor: int) -> None:
    """Waits until the other end of the connection is closed, then ends this process."""
    poll = select.poll()
    # with an empty mask, `poll` reports only hang-ups and errors
    poll.register(descriptor, 0)
    poll.poll()
    os._exit(1)
