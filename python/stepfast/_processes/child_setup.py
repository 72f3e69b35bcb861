"""A child process among the others: it leaves signals to the program, and ends with it."""

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

#: The system takes memory from a child rather than from the program: of two that are as large, always.
OOM_SCORE: Final = 500

_PR_SET_PDEATHSIG: Final = 1


def settle_in(connection: Connection[Any, Any], parent: int) -> None:
    """Prepares a child of the process `parent`, once."""
    os.set_inheritable(connection.fileno(), False)
    # a copy of this process must not keep the program waiting for the end of this one
    os.register_at_fork(after_in_child=connection.close)
    leave_signals()
    if not dies_with(parent):
        threading.Thread(target=end_with, args=(connection.fileno(),), daemon=True).start()
    spare_the_program()
    # says where a body was that crashes
    with contextlib.suppress(Exception):
        faulthandler.enable()


def spare_the_program() -> None:
    """When memory runs out, this process is the one to be killed."""
    file = "/proc/self/oom_score_adj"
    with contextlib.suppress(OSError):
        with open(file) as score:
            now = int(score.read())
        if now < OOM_SCORE:
            with open(file, "w") as score:
                score.write(str(OOM_SCORE))


def leave_signals() -> None:
    """Ctrl-C, and the end of a service, are often told to all processes at once. The program decides what
    becomes of the children then: a body that is cut off so has not failed."""

    def leave(number: int, frame: FrameType | None) -> None:
        pass

    def back_to_default() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
    # not by SIG_IGN, which programs that a body starts would inherit
    os.register_at_fork(after_in_child=back_to_default)


def dies_with(parent: int) -> bool:
    """Has the system kill this process when the thread ends that has started it. False if it cannot."""
    try:
        import ctypes

        if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
            return False
    except (ImportError, AttributeError, OSError):
        return False
    if os.getppid() != parent:
        # it ended before
        os._exit(1)
    return True


def end_with(descriptor: int) -> None:
    """Ends this process when the other end of the connection is gone."""
    poll = select.poll()
    # reports only that
    poll.register(descriptor, 0)
    poll.poll()
    os._exit(1)
