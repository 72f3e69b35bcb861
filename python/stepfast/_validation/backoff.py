"""The pauses between the attempts of a step: `backoff`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, cast

from stepfast._validation.coroutine_function import CoroutineFunction
from stepfast._validation.durations import Duration, to_seconds
from stepfast._validation.text import short_repr
from stepfast.errors import InvalidArgument

Backoff: TypeAlias = Duration | Sequence[Duration] | Callable[[int], Duration]
"""The pause before the second attempt of a step, from which `backoff_factor` makes the further ones; a list
of the pauses; or a sync function that returns the pause for the number of the failed attempt, from 1."""

#: The maximum number of pauses that a function may give to a step. The last one is repeated.
MAX_PAUSES: Final = 1_000
#: The default of `backoff_factor`.
_DEFAULT_FACTOR: Final = 2.0


def to_pauses(
    backoff: Any, backoff_factor: float, max_backoff: float, retries: int
) -> tuple[float, list[float] | None]:
    """Returns the pause before the second attempt in seconds, and all pauses if the option is a list or a
    function.

    Args:
        backoff: The option, as the caller has given it.
        backoff_factor: The option of this name.
        max_backoff: The longest pause, in seconds.
        retries: The number of pauses for which the function is called, at most `MAX_PAUSES`.

    Raises:
        InvalidArgument: The option is neither a time span, a list nor a sync function, or a pause is out of
            its bounds, or `backoff_factor` is given with a list or a function.
        Exception: The exception that the function has raised.
    """
    if callable(backoff):
        if CoroutineFunction.is_like(backoff):
            raise InvalidArgument(f"backoff is {short_repr(backoff)}, and must be a sync function")
        _check_factor("a function", backoff_factor)
        numbers = range(1, min(retries, MAX_PAUSES) + 1)
        pauses = [_to_pause(f"backoff({attempt})", backoff(attempt)) for attempt in numbers]
        return 0.0, pauses or None
    if isinstance(backoff, Sequence) and not isinstance(backoff, (str, bytes, bytearray)):
        _check_factor("a list", backoff_factor)
        return 0.0, _listed_pauses(cast("Any", backoff), max_backoff)
    return to_seconds("backoff", backoff, 0), None


def _listed_pauses(backoff: Sequence[Any], max_backoff: float) -> list[float]:
    if not backoff:
        raise InvalidArgument("backoff is empty, and must have at least one pause: write backoff=0 for none")
    pauses: list[float] = []
    for index, pause in enumerate(backoff):
        seconds = _to_pause(f"backoff[{index}]", pause)
        if seconds > max_backoff:
            raise InvalidArgument(
                f"backoff[{index}] is {short_repr(pause)}, and max_backoff is {max_backoff} s: raise "
                "max_backoff to the longest pause of the list"
            )
        pauses.append(seconds)
    return pauses


def _to_pause(what: str, value: Any) -> float:
    seconds = to_seconds(what, value, 0)
    if math.isinf(seconds):
        raise InvalidArgument(f"{what} is {short_repr(value)}, and must be finite")
    return seconds


def _check_factor(kind: str, backoff_factor: float) -> None:
    if backoff_factor != _DEFAULT_FACTOR:
        raise InvalidArgument(
            f"backoff_factor is {backoff_factor}, and backoff is {kind}, which gives all pauses: leave out "
            "one of them"
        )


__all__ = ["Backoff", "to_pauses"]
