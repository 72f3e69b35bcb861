"""Time spans, which callers give as seconds or as a `timedelta`."""

from __future__ import annotations

import math
from datetime import timedelta
from numbers import Real
from typing import Any, TypeAlias

from stepfast._validation.text import short_repr
from stepfast.errors import InvalidArgument

Duration: TypeAlias = float | timedelta
"""A time span: a number of seconds, or a `timedelta`. All calls that take a time span accept both."""


def to_seconds(what: str, value: Any, minimum: float = -math.inf, maximum: float = math.inf) -> float:
    """Returns a time span in seconds. Callers handle None themselves.

    Args:
        what: The name of the option, for the error message.
        value: The time span, as the caller has given it.
        minimum: The shortest allowed time span, in seconds.
        maximum: The longest allowed time span, in seconds.

    Raises:
        InvalidArgument: The value is neither a number nor a `timedelta`, or NaN, or out of its bounds.
    """
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif type(value) is not float and (type(value) is bool or not isinstance(value, Real)):
        raise InvalidArgument(
            f"{what} is {short_repr(value)}, and must be a number of seconds or a timedelta"
        )
    else:
        number: Any = value
        try:
            seconds = float(number)
        except OverflowError:
            # the number is an int beyond the range of floats
            seconds = math.inf if number > 0 else -math.inf
    # the comparison is False for NaN, too
    if minimum <= seconds <= maximum:
        return seconds
    if minimum == -math.inf and maximum == math.inf:
        bounds = "a number of seconds"
    elif maximum == math.inf:
        bounds = f"at least {minimum} s"
    else:
        bounds = f"from {minimum} to {maximum} s"
    raise InvalidArgument(f"{what} is {short_repr(value)}, and must be {bounds}")


def to_timeout(what: str, value: Any) -> float | None:
    """Returns a time limit in seconds, or None for no limit. Rejects negative limits.

    Args:
        what: The name of the option, for the error message.
        value: The time limit, as the caller has given it.

    Raises:
        InvalidArgument: The value is neither a number nor a `timedelta`, or NaN, or negative.
    """
    return None if value is None else to_seconds(what, value, 0)


__all__ = ["Duration", "to_seconds", "to_timeout"]
