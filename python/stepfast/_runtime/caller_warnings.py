"""Warnings that name a line of the program, not a line of the package."""

from __future__ import annotations

import inspect
import logging
import os
import sys
import warnings
from types import CodeType
from typing import Any, Final

from stepfast._runtime.event_loop.asyncio_internals import calling_frame_outside
from stepfast.errors import StepfastWarning

#: The folder of the package `stepfast`, with a separator at its end.
_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

_log: Final = logging.getLogger("stepfast")


def warn_caller(text: str) -> None:
    """Warns at the line of the program that calls the package. By default Python shows the warning once per
    line."""
    frame = calling_frame_outside(_PACKAGE)
    if frame is None:
        warnings.warn(text, StepfastWarning, stacklevel=2)
        return
    warnings.warn_explicit(
        text,
        StepfastWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def caller_module() -> str:
    """Returns the name of the module of the program that calls the package."""
    frame = calling_frame_outside(_PACKAGE)
    return "__main__" if frame is None else str(frame.f_globals.get("__name__", "__main__"))


def warn_of_function(text: str, function: Any) -> None:
    """Warns at the definition of a function. If the program turns warnings into errors, the text is logged
    instead, because no code of the program could handle the error.

    Args:
        text: The text of the warning.
        function: The function; None for a function that is not known here.
    """
    code: Any = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    is_code = isinstance(code, CodeType)
    try:
        warnings.warn_explicit(
            text,
            StepfastWarning,
            code.co_filename if is_code else "<unknown>",
            code.co_firstlineno if is_code else 1,
            module=getattr(function, "__module__", None),
        )
    except StepfastWarning:
        _log.warning("%s", text)


def warn_of_blocked_loop() -> None:
    """Warns of a call that blocks the event loop of its thread. If the program turns warnings into errors,
    the text is logged instead, because the call has begun already. Does nothing in notebooks, where every
    cell blocks the event loop of the kernel."""
    if "ipykernel" in sys.modules:
        return
    text = (
        "a call of a sync engine blocks the event loop that runs in this thread: use an AsyncEngine in async "
        "code, or await asyncio.to_thread(...)"
    )
    try:
        warn_caller(text)
    except StepfastWarning:
        _log.warning("%s", text, stack_info=True)


__all__ = ["caller_module", "warn_caller", "warn_of_blocked_loop", "warn_of_function"]
