"""The rule by which a step retries its failed attempts: `retry_on` and `retry_if`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

from stepfast._validation.coroutine_function import CoroutineFunction
from stepfast._validation.text import short_repr
from stepfast.errors import InvalidArgument

RetryOn: TypeAlias = type[Exception] | tuple[type[Exception], ...]
"""The exception class, or a tuple of the classes, after which a step makes a further attempt."""


def retry_rule(retry_on: Any, retry_if: Any) -> Callable[[Exception], bool] | None:
    """Returns the function that decides whether an exception may be retried; None if every exception may.

    Args:
        retry_on: The exception classes that may be retried; None for all.
        retry_if: A function that decides for one exception; None for no further condition.

    Raises:
        InvalidArgument: `retry_on` contains a value that is no exception class, or `retry_if` is no sync
            function.
    """
    classes = None if retry_on is None else _checked_classes(retry_on)
    if retry_if is not None:
        _check_function(retry_if)
    decide = cast("Callable[[Exception], bool] | None", retry_if)
    if classes is None:
        return decide
    if decide is None:
        return lambda error: isinstance(error, classes)
    return lambda error: isinstance(error, classes) and decide(error)


def _checked_classes(retry_on: Any) -> tuple[type[Exception], ...]:
    shown = short_repr(retry_on)
    listed: tuple[Any, ...] = cast("Any", retry_on) if isinstance(retry_on, tuple) else (retry_on,)
    if not listed:
        raise InvalidArgument("retry_on is empty: leave retries out for a step that is never retried")
    for each in listed:
        if not isinstance(each, type) or not issubclass(each, Exception):
            raise InvalidArgument(
                f"retry_on is {shown}, and must be an exception class, or a tuple of some, as "
                "in retry_on=(ConnectionError, TimeoutError)"
            )
    return listed


def _check_function(retry_if: Any) -> None:
    given: object = retry_if
    if isinstance(given, type) and issubclass(given, BaseException):
        name = given.__qualname__
        raise InvalidArgument(
            f"retry_if is the class {name}, and must be a function: write retry_on={name} for a class"
        )
    if not callable(retry_if):
        raise InvalidArgument(
            f"retry_if is {short_repr(retry_if)}, and must be a function that takes the exception"
        )
    if CoroutineFunction.is_like(retry_if):
        # the coroutine of an async function would count as true for every exception
        raise InvalidArgument(
            f"retry_if is {short_repr(retry_if)}, and must be a sync function: its result would not be "
            "awaited"
        )


__all__ = ["RetryOn", "retry_rule"]
