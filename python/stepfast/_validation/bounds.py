"""What options may be: checked where they are given, so that the error comes from there."""

from __future__ import annotations

import inspect
import math
import sys
import unicodedata
from numbers import Integral, Real
from threading import TIMEOUT_MAX
from typing import Any, Final, cast

from stepfast._validation.coroutine_function import CoroutineFunction
from stepfast._validation.text import shown
from stepfast.errors import Invalid

#: Longest name of a step or workflow, in bytes.
NAME: Final = 255
#: Longest workflow_id, dedup_id and key within a queue, in bytes.
KEY: Final = 1024
#: Longest URL, in bytes.
URL: Final = 8192
#: The largest limit of a queue, on every store.
LIMIT: Final = 2**31 - 1
#: What is longer, in seconds, counts as this: a hundred years.
LONGEST: Final = 100 * 366 * 86_400.0
#: The most that the engine counts attempts and recoveries to.
RETRIES: Final = 2**32 - 1


def number(what: str, value: Any, least: float = -math.inf, most: float = math.inf) -> None:
    """Refuses what is no number, or not within its bounds. None is for the caller to sort out.

    Raises:
        Invalid: It is no number, not a number (NaN), less than `least` or more than `most`.
    """
    if type(value) is not float and (type(value) is bool or not isinstance(value, Real)):
        raise Invalid(f"{what} is {shown(value)}, and must be a number")
    given = cast("float", value)
    if least <= given <= most:
        return
    if least == -math.inf and most == math.inf:
        raise Invalid(f"{what} is {shown(value)}, and must be a number")
    bounds = f"at least {least}" if most == math.inf else f"from {least} to {most}"
    raise Invalid(f"{what} is {shown(value)}, and must be {bounds}")


def seconds(what: str, value: Any) -> None:
    """Refuses what is no span of time.

    Raises:
        Invalid: It is no number, or negative.
    """
    if type(value) is not float and not isinstance(value, Real):
        raise Invalid(f"{what} is {shown(value)}, and must be a number of seconds")
    number(what, value, 0)


def grace(value: Any) -> float:
    """How long an end may take, in seconds: never longer than threads can wait.

    Raises:
        Invalid: It is no number, or negative.
    """
    seconds("grace", value)
    return min(float(value), TIMEOUT_MAX)


def limit(what: str, value: Any) -> None:
    """Refuses a limit in time that is none; None is no limit.

    Raises:
        Invalid: It is no number, or negative.
    """
    if value is not None:
        seconds(what, value)


def count(what: str, value: Any, least: int, most: int = sys.maxsize) -> None:
    """Refuses what is no whole number within its bounds.

    Raises:
        Invalid: It is no whole number, less than `least` or more than `most`.
    """
    if type(value) is bool or not isinstance(value, Integral):
        raise Invalid(f"{what} is {shown(value)}, and must be a whole number")
    if not least <= int(value) <= most:
        bounds = f"at least {least}" if most == sys.maxsize and value < least else f"from {least} to {most}"
        raise Invalid(f"{what} is {shown(value)}, and must be {bounds}")


def flag(what: str, value: Any) -> None:
    """Refuses what is neither True nor False.

    Raises:
        Invalid: It is something else.
    """
    if not isinstance(value, bool):
        raise Invalid(f"{what} is {shown(value)}, and must be True or False")


def text(what: str, value: Any) -> None:
    """Refuses what is no text.

    Raises:
        Invalid: It is something else, or empty.
    """
    if not isinstance(value, str) or not value:
        raise Invalid(f"{what} is {shown(value)}, and must be text that is not empty")


def stored(what: str, value: Any) -> None:
    """Refuses what is no text that a store can have, or compare with what it has.

    Raises:
        Invalid: It is no text, or has a NUL or half of a pair of surrogates.
    """
    if not isinstance(value, str):
        raise Invalid(f"{what} is {shown(value)}, and must be text")
    if "\0" in value or any(unicodedata.category(each) == "Cs" for each in value):
        raise Invalid(
            f"{what} is {shown(value)}, and must not have a NUL or a lone surrogate: no store has such text"
        )


def store_url(value: Any) -> None:
    """Refuses what is no URL of a store.

    Raises:
        Invalid: It is no text, empty, too long, or not printable.
    """
    name("url", value, URL)


def name(what: str, value: Any, most: int = NAME) -> None:
    """Refuses what cannot be the name of a step, workflow or queue, as the engine would when it is used.

    Raises:
        Invalid: It is no text, empty, too long, or not printable.
    """
    text(what, value)
    size = len(value.encode(errors="surrogatepass"))
    if size > most:
        raise Invalid(f"{what} is {shown(value)} and has {size} bytes, at most {most} are allowed")
    if any(unicodedata.category(each) in ("Cc", "Cs") for each in value):
        raise Invalid(f"{what} is {shown(value)}, and must consist of printable characters")


def of_engine(
    url: Any,
    max_running: Any,
    suspend_after: Any,
    value_limit: Any,
    threads: Any,
    processes: Any,
    app_version: Any,
    max_recoveries: Any,
) -> None:
    """Refuses options that no engine can have.

    Raises:
        Invalid: One of them is out of its bounds.
    """
    store_url(url)
    count("max_running", max_running, 1)
    seconds("suspend_after", suspend_after)
    count("value_limit", value_limit, 1)
    count("threads", threads, 1)
    if processes is not None:
        count("processes", processes, 1)
    if app_version is not None:
        name("app_version", app_version)
    count("max_recoveries", max_recoveries, 0, RETRIES)


def of_step(
    name_given: Any,
    retries: Any,
    backoff: Any,
    factor: Any,
    max_backoff: Any,
    jitter: Any,
    timeout: Any,
    speculative: Any,
    retry_if: Any,
) -> None:
    """Refuses options that no step can have.

    Raises:
        Invalid: One of them is out of its bounds.
    """
    if name_given is not None:
        name("name", name_given)
    count("retries", retries, 0, RETRIES)
    seconds("backoff", backoff)
    number("factor", factor, 1)
    seconds("max_backoff", max_backoff)
    number("jitter", jitter, 0, 1)
    limit("timeout", timeout)
    if timeout == 0:
        raise Invalid("timeout is 0, and no attempt can be that fast: leave it out for no limit")
    flag("speculative", speculative)
    given: object = retry_if
    if isinstance(given, type) and issubclass(given, BaseException):
        raise Invalid(
            f"retry_if is the class {given.__qualname__}, and must be a function: write "
            f"retry_if=lambda error: isinstance(error, {given.__qualname__})"
        )
    if retry_if is not None and not callable(retry_if):
        raise Invalid(f"retry_if is {shown(retry_if)}, and must be a function that takes the exception")
    if CoroutineFunction.is_like(retry_if):
        # its coroutine would be true, whatever the exception is
        raise Invalid(
            f"retry_if is {shown(retry_if)}, and must be a sync function: nothing awaits its answer"
        )


def function(what: str, value: Any) -> None:
    """Refuses what cannot be the body of a step, or the code of a workflow.

    Raises:
        Invalid: It is a step or a workflow already, or a generator.
    """
    if hasattr(value, "__stepfast__"):
        raise Invalid(
            f"{shown(value)} is one already, and cannot be made a {what}: decorate a plain function"
        )
    if inspect.isasyncgenfunction(value):
        raise Invalid(
            f"{value.__qualname__} is an async generator, which cannot be a {what}: return a list, or make a "
            "step of what it does for each item"
        )
    if inspect.isgeneratorfunction(value):
        raise Invalid(
            f"{value.__qualname__} is a generator, which cannot be a {what}: return a list, or make a "
            "step of what it does for each item"
        )


def of_order(workflow_id: Any, timeout: Any, patience: Any) -> None:
    """Refuses options that nothing can be started with.

    Raises:
        Invalid: One of them is out of its bounds.
    """
    if workflow_id is not None:
        name("workflow_id", workflow_id, KEY)
    limit("timeout", timeout)
    limit("patience", patience)
