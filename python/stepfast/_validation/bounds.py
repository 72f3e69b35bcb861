"""Checks options as soon as a call passes them, so that this call raises the error."""

from __future__ import annotations

import inspect
import math
import sys
import unicodedata
from numbers import Integral, Real
from threading import TIMEOUT_MAX
from typing import Any, Final, cast

from stepfast._validation.durations import to_seconds
from stepfast._validation.text import short_repr
from stepfast.errors import InvalidArgument

#: The maximum size of the name of a step or workflow, in bytes.
MAX_NAME_BYTES: Final = 255
#: The maximum size of a workflow_id, of a dedup_id, and of a key within a queue, in bytes.
MAX_ID_BYTES: Final = 1024
#: The maximum size of a URL, in bytes.
MAX_URL_BYTES: Final = 8192
#: The maximum value of a queue's limit, on every store.
MAX_QUEUE_LIMIT: Final = 2**31 - 1
#: The longest time span, in seconds: a hundred years. Longer time spans count as this one.
MAX_SECONDS: Final = 100 * 366 * 86_400.0
#: The maximum numbers of retries and of recoveries that the native engine can count.
MAX_RETRIES: Final = 2**32 - 1
#: The maximum offset of a value in a stream.
MAX_OFFSET: Final = 2**63 - 1


def check_number(what: str, value: Any, minimum: float = -math.inf, maximum: float = math.inf) -> None:
    """Checks that a value is a number within its bounds. Callers handle None themselves.

    Raises:
        InvalidArgument: The value is no number, NaN, less than `minimum` or more than `maximum`.
    """
    if type(value) is not float and (type(value) is bool or not isinstance(value, Real)):
        raise InvalidArgument(f"{what} is {short_repr(value)}, and must be a number")
    given = cast("float", value)
    if minimum <= given <= maximum:
        return
    if minimum == -math.inf and maximum == math.inf:
        raise InvalidArgument(f"{what} is {short_repr(value)}, and must be a number")
    bounds = f"at least {minimum}" if maximum == math.inf else f"from {minimum} to {maximum}"
    raise InvalidArgument(f"{what} is {short_repr(value)}, and must be {bounds}")


def checked_grace(value: Any) -> float:
    """Returns a grace period in seconds, capped at the longest time for which threads can wait.

    Raises:
        InvalidArgument: The value is neither a number nor a `timedelta`, or negative.
    """
    return min(to_seconds("grace", value, 0), TIMEOUT_MAX)


def refuse_text(what: str, values: Any) -> None:
    """Refuses a text where several texts are expected: it would be taken as its characters.

    Raises:
        InvalidArgument: The values are a text.
    """
    if isinstance(values, str):
        raise InvalidArgument(
            f"{what} is the text {short_repr(values)}, and must be several: [{short_repr(values)}]"
        )


def check_count(what: str, value: Any, minimum: int, maximum: int = sys.maxsize) -> None:
    """Checks that a value is a whole number within its bounds.

    Raises:
        InvalidArgument: The value is no whole number, less than `minimum` or more than `maximum`.
    """
    if type(value) is bool or not isinstance(value, Integral):
        raise InvalidArgument(f"{what} is {short_repr(value)}, and must be a whole number")
    if not minimum <= int(value) <= maximum:
        bounds = (
            f"at least {minimum}"
            if maximum == sys.maxsize and value < minimum
            else f"from {minimum} to {maximum}"
        )
        raise InvalidArgument(f"{what} is {short_repr(value)}, and must be {bounds}")


def check_flag(what: str, value: Any) -> None:
    """Checks that a value is True or False.

    Raises:
        InvalidArgument: The value is neither True nor False.
    """
    if not isinstance(value, bool):
        raise InvalidArgument(f"{what} is {short_repr(value)}, and must be True or False")


def check_text(what: str, value: Any) -> None:
    """Checks that a value is text that is not empty.

    Raises:
        InvalidArgument: The value is no text, or is empty.
    """
    if not isinstance(value, str) or not value:
        raise InvalidArgument(f"{what} is {short_repr(value)}, and must be text that is not empty")


def check_storable_text(what: str, value: Any) -> None:
    """Checks that a value is text that stores can hold and compare.

    Raises:
        InvalidArgument: The value is no text, or contains a NUL or a lone surrogate.
    """
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} is {short_repr(value)}, and must be text")
    if "\0" in value or any(unicodedata.category(character) == "Cs" for character in value):
        raise InvalidArgument(
            f"{what} is {short_repr(value)}, and must not have a NUL or a lone surrogate: no store has such "
            "text"
        )


def check_store_url(value: Any) -> None:
    """Checks that a value may be the URL of a store.

    Raises:
        InvalidArgument: The value is no text, empty, too long, or not printable.
    """
    check_name("url", value, MAX_URL_BYTES)


def check_name(what: str, value: Any, maximum: int = MAX_NAME_BYTES) -> None:
    """Checks that a value may be the name of a step, workflow or queue, by the same rules as the native
    engine.

    Raises:
        InvalidArgument: The value is no text, empty, too long, or not printable.
    """
    check_text(what, value)
    size = len(value.encode(errors="surrogatepass"))
    if size > maximum:
        raise InvalidArgument(
            f"{what} is {short_repr(value)} and has {size} bytes, at most {maximum} are allowed"
        )
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in value):
        raise InvalidArgument(f"{what} is {short_repr(value)}, and must consist of printable characters")


def check_engine_options(
    url: Any,
    max_running: Any,
    value_limit: Any,
    max_threads: Any,
    max_processes: Any,
    app_version: Any,
    max_recoveries: Any,
) -> None:
    """Checks the options of an engine that are neither time spans nor queues.

    Raises:
        InvalidArgument: An option is out of its bounds.
    """
    check_store_url(url)
    check_count("max_running", max_running, 1)
    check_count("value_limit", value_limit, 1)
    check_count("max_threads", max_threads, 1)
    if max_processes is not None:
        check_count("max_processes", max_processes, 1)
    if app_version is not None:
        check_name("app_version", app_version)
    check_count("max_recoveries", max_recoveries, 0, MAX_RETRIES)


def check_step_options(
    name_given: Any, retries: Any, backoff_factor: Any, jitter: Any, speculative: Any
) -> None:
    """Checks the options of a step that are neither time spans nor functions.

    Raises:
        InvalidArgument: An option is out of its bounds.
    """
    if name_given is not None:
        check_name("name", name_given)
    check_count("retries", retries, 0, MAX_RETRIES)
    check_number("backoff_factor", backoff_factor, 1)
    check_number("jitter", jitter, 0, 1)
    check_flag("speculative", speculative)


def _is_function(value: Any) -> bool:
    # descriptors have errors of their own
    return callable(value) or isinstance(value, classmethod | staticmethod)


def check_function(what: str, value: Any) -> None:
    """Checks that a value can be the body of a step, or the code of a workflow.

    Raises:
        InvalidArgument: The value is no function, is a step or a workflow already, or is a generator
            function.
    """
    if hasattr(value, "__stepfast__"):
        raise InvalidArgument(
            f"{short_repr(value)} is a step or a workflow already, and cannot be made a {what}: decorate a "
            "plain function"
        )
    if not _is_function(value):
        raise InvalidArgument(
            f"{short_repr(value)} is no function, and cannot be made a {what}: decorate a function"
        )
    if inspect.isasyncgenfunction(value):
        raise InvalidArgument(
            f"{value.__qualname__} is an async generator, which cannot be a {what}: return a list, or make a "
            "step of what it does for each item"
        )
    if inspect.isgeneratorfunction(value):
        raise InvalidArgument(
            f"{value.__qualname__} is a generator, which cannot be a {what}: return a list, or make a "
            "step of what it does for each item"
        )
