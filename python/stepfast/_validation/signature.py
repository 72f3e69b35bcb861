"""The parameters of steps and workflows."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from stepfast import _native


def signature_of(function: Callable[..., Any]) -> _native.Signature | None:
    """Returns the parameters of a function; None if Python cannot determine them.

    For a function that a decorator has wrapped, these are the parameters of the wrapper, because a wrapper
    may pass on other arguments than it receives.
    """
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return None
    parameters = [
        (each.name, int(each.kind), () if each.default is each.empty else (each.default,))
        for each in signature.parameters.values()
    ]
    return _native.Signature(getattr(function, "__qualname__", repr(function)), signature, parameters)
