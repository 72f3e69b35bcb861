"""The error messages for child processes that died."""

from __future__ import annotations

import signal

from stepfast.errors import ProcessDied


def process_died(step: str, code: int | None, *, has_begun: bool) -> ProcessDied:
    """Returns the error for a child process that ended before the body had returned.

    Args:
        step: The step's name.
        code: The exit code of the process, or minus the number of a signal; `None` if the process still runs,
            but could not be reached.
        has_begun: Whether the body had begun. Before the body begins, the process imports its module and
            reads the arguments.
    """
    if code is None:
        reason = (
            "closed its connection to the program; a body must not close descriptors that it did not open"
        )
    elif code >= 0 and not has_begun:
        reason = f"ended with exit code {code} when it imported the module of the step, or read its arguments"
    elif code >= 0:
        reason = (
            f"ended with exit code {code} before the body had returned; a body must not end its process "
            "(sys.exit, os._exit), but raise an exception"
        )
    else:
        reason = f"was killed by {signal_name(-code)}"
        if -code == signal.SIGKILL:
            reason += (
                "; unless that was done on purpose, the system ran out of memory, and its out-of-memory "
                "killer chose this process: see dmesg, and let the body use less memory, or fewer bodies run "
                "at a time (max_processes=)"
            )
        elif -code in _CRASHES:
            reason += "; it crashed in native code, and its stderr says in which call"
    return ProcessDied(f"the process of step {step!r} {reason}", code)


_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}


def signal_name(number: int) -> str:
    """Returns the name of a signal with its description, as in `SIGSEGV (Segmentation fault)`."""
    try:
        return f"{signal.Signals(number).name} ({signal.strsignal(number)})"
    except ValueError:
        return f"signal {number}"
