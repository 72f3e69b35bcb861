"""Errors for objects that are used outside of their process or of their event loop."""

from __future__ import annotations

from stepfast.errors import InvalidArgument


def forked_process_error() -> InvalidArgument:
    """Returns the error for an engine or a handle that is used in a child process forked from its own
    process."""
    return InvalidArgument(
        "this object belongs to the process from which this process was forked, and cannot be used here: "
        "open an engine in this process, or start a new process (multiprocessing: spawn)",
        "SF-0034",
    )


def other_loop_error(what: str) -> InvalidArgument:
    """Returns the error for an object of an event loop that is used on another loop, or on none.

    Args:
        what: The object, as the error message names it.
    """
    return InvalidArgument(
        f"{what} belongs to the event loop on which it was opened, but another loop, or none, runs here: use "
        "it only in coroutines of its own loop; for threads there is asyncio.run_coroutine_threadsafe, and "
        "Engine",
        "SF-0033",
    )


__all__ = ["forked_process_error", "other_loop_error"]
