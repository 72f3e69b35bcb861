"""What the step says whose process has died."""

from __future__ import annotations

import signal

from stepfast.errors import ProcessDied


def died(step: str, code: int | None, *, has_begun: bool) -> ProcessDied:
    """The error for a process that has ended before the body had returned.

    Args:
        step: The step's name.
        code: What the process ended with: an exit code, or minus the number of a signal; `None` if it went
            on, but could not be reached any more.
        has_begun: The body had begun; before, the process imports its module, and reads its arguments.
    """
    if code is None:
        end = "closed its connection to the program; a body must not close descriptors that it did not open"
    elif code >= 0 and not has_begun:
        end = f"ended with exit code {code} when it imported the module of the step, or read its arguments"
    elif code >= 0:
        end = (
            f"ended with exit code {code} before the body had returned; a body must not end its process "
            "(sys.exit, os._exit), but raise an exception"
        )
    else:
        end = f"was killed by {signal_name(-code)}"
        if -code == signal.SIGKILL:
            end += (
                "; if nobody did that on purpose, the system was out of memory, and its out-of-memory killer "
                "did: see dmesg, and let the body need less, or fewer run at a time (processes=)"
            )
        elif -code in _CRASHES:
            end += "; it crashed in native code, and its stderr says in which call"
    return ProcessDied(f"the process of step {step!r} {end}", code)


_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}


def signal_name(number: int) -> str:
    """`SIGSEGV (Segmentation fault)`."""
    try:
        return f"{signal.Signals(number).name} ({signal.strsignal(number)})"
    except ValueError:
        return f"signal {number}"
