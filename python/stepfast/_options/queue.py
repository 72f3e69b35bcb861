"""Queues and their limits, as code declares them and as they are stored, with checks and conversions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, cast

from stepfast._validation import bounds
from stepfast._validation.durations import Duration, to_seconds
from stepfast._validation.text import short_repr
from stepfast._validation.times import to_datetime
from stepfast.errors import InvalidArgument

#: The name that stands for executions without a queue of their own, in `serve_queues` and in filters.
DEFAULT_QUEUE: Final = "default"
#: The values of `on_conflict`: what to do about a queue that is stored with other limits.
CONFLICT_POLICIES: Final = ("update", "keep", "reject")

#: The maximum weight of a key, and the maximum number of keys of a queue that have a weight.
MAX_KEY_WEIGHT: Final = 1_000
MAX_WEIGHTED_KEYS: Final = 1_000

#: A rate for the native engine: number of starts, period in milliseconds, burst.
RateTuple = tuple[int, int, int | None]
#: A queue for the native engine. The parts are the name, three limits of concurrency (in all processes, per
#: worker, per key), the rate, the rate per key, the maximum depth, and the weights of keys.
QueueTuple = tuple[
    str,
    int | None,
    int | None,
    int | None,
    RateTuple | None,
    RateTuple | None,
    int | None,
    dict[str, int],
]


@dataclass(frozen=True, slots=True, init=False)
class Rate:
    """A limit on how often executions begin: at most `starts` in any period of `per`. With a `burst`, the
    beginnings are also spaced evenly.

    An execution begins when an engine takes it for the first time. It begins again when an engine takes it
    after the death of its worker, a requeue or a resume. An execution that continues after a wait does not
    begin again.

    Args:
        starts: The number of executions that may begin in a period, at least 1.
        per: The period, as seconds or as a `timedelta`, from 0.001 s to a year. The attribute is in seconds.
        burst: With a burst, executions begin evenly spaced, one every `per / starts`. After a pause, this
            number of executions may begin at once; with 1, all are spaced. None by default: executions begin
            without spacing until `starts` have begun in the period.

    Raises:
        InvalidArgument: An argument is out of its bounds.
    """

    starts: int
    per: float
    _: KW_ONLY
    burst: int | None

    def __init__(self, starts: int, per: Duration, *, burst: int | None = None) -> None:
        bounds.check_count("the starts of a rate", starts, 1, bounds.MAX_QUEUE_LIMIT)
        seconds = to_seconds("the period of a rate", per, 0.001, 366 * 86_400)
        if burst is not None:
            bounds.check_count("the burst of a rate", burst, 1, bounds.MAX_QUEUE_LIMIT)
        # plain assignment raises, because the class is frozen
        for name, value in (("starts", starts), ("per", seconds), ("burst", burst)):
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue and its limits, as code declares them. An example is `Queue("emails", concurrency=100)` in the
    argument `queues` of an engine. An execution that is suspended in a sleep, or in a wait for a child,
    counts towards no limit.

    Args:
        name: The name, at most 255 bytes. The name `default` is reserved for executions without a queue.
        concurrency: The maximum number of executions of the queue that run at a time in all processes
            together, at least 1; no limit by default.
        worker_concurrency: The maximum number of its executions that run at a time in any one engine, at
            least 1; no limit by default.
        key_concurrency: The maximum number of executions of any one key that run at a time in all processes
            together, at least 1; no limit by default.
        rate: The limit on how often its executions begin, in all processes together; no limit by default.
        key_rate: The limit on how often executions of any one key begin; no limit by default.
        max_depth: The maximum number of executions of the queue that wait for their beginning, delayed ones
            included, at least 1; no limit by default. A further start raises `QueueFull` or waits for
            capacity; its option `on_full` decides. A start from inside a workflow is never rejected.
        key_weights: Keys with a larger share of the queue than others, each with its weight from 1 to 1,000.
            There are at most 1,000 such keys, and none by default. Other keys have the weight 1. When slots
            are short, a key of weight 5 gets five times the share of a key of weight 1.
        on_conflict: What an engine or client that declares the queue does when it opens, if the queue is
            stored with other limits. `update` stores these limits, for all processes at once. `keep` leaves
            the stored limits. `reject` raises `QueueConflict`. `update` by default.

    Raises:
        InvalidArgument: An argument is out of its bounds.
    """

    name: str
    _: KW_ONLY
    concurrency: int | None = None
    worker_concurrency: int | None = None
    key_concurrency: int | None = None
    rate: Rate | None = None
    key_rate: Rate | None = None
    max_depth: int | None = None
    key_weights: Mapping[str, int] = field(default_factory=dict[str, int], hash=False)
    on_conflict: Literal["update", "keep", "reject"] = "update"

    def __post_init__(self) -> None:
        bounds.check_name("the queue's name", self.name)
        if self.name == DEFAULT_QUEUE:
            raise InvalidArgument(
                f"the queue's name is {DEFAULT_QUEUE!r}, the queue of the executions without a queue, which "
                "has no limits: choose another name"
            )
        for limit_name in ("concurrency", "worker_concurrency", "key_concurrency", "max_depth"):
            limit = getattr(self, limit_name)
            if limit is None:
                continue
            if limit == 0:
                raise InvalidArgument(
                    f"{limit_name} of queue {short_repr(self.name)} is {short_repr(limit)}, and must be at "
                    "least 1: to stop a queue, pause it"
                )
            bounds.check_count(
                f"{limit_name} of queue {short_repr(self.name)}", limit, 1, bounds.MAX_QUEUE_LIMIT
            )
        for rate_name in ("rate", "key_rate"):
            rate = getattr(self, rate_name)
            if rate is not None and not isinstance(rate, Rate):
                raise InvalidArgument(
                    f"{rate_name} of queue {short_repr(self.name)} is {short_repr(rate)}, and must be a "
                    "Rate: write Rate(100, per=60)"
                )
        # a copy, because the caller may change the original later
        object.__setattr__(self, "key_weights", _check_weights(self.name, self.key_weights))
        if self.on_conflict not in CONFLICT_POLICIES:
            raise InvalidArgument(
                f"on_conflict of queue {short_repr(self.name)} is {short_repr(self.on_conflict)}, and must "
                f"be one of {', '.join(map(repr, CONFLICT_POLICIES))}"
            )


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue and its limits, as they are stored.

    Attributes:
        name: The name of the queue.
        concurrency: The maximum number of executions of the queue that run at a time in all processes
            together; `None` for no limit.
        worker_concurrency: The maximum number of its executions that run at a time in any one engine; `None`
            for no limit.
        key_concurrency: The maximum number of executions of any one key that run at a time in all processes
            together; `None` for no limit.
        rate: The limit on how often its executions begin, in all processes together; `None` for no limit.
        key_rate: The limit on how often executions of any one key begin; `None` for no limit.
        max_depth: The maximum number of executions of the queue that wait for their beginning, delayed ones
            included; `None` for no limit.
        key_weights: Keys with a larger share of the queue than others, each with its weight.
        is_paused: Whether the queue is paused: then no execution of it begins.
        version: A number that counts the changes of the queue, its creation included.
        changed_at: The time of the last change of the queue.
    """

    name: str
    concurrency: int | None
    worker_concurrency: int | None
    key_concurrency: int | None
    rate: Rate | None
    key_rate: Rate | None
    max_depth: int | None
    key_weights: dict[str, int]
    is_paused: bool
    version: int
    changed_at: datetime


def _check_weights(queue: str, given: Any) -> dict[str, int]:
    """Checks the weights of a queue's keys, and returns a copy of them."""
    if not isinstance(given, Mapping):
        raise InvalidArgument(
            f"key_weights of queue {short_repr(queue)} is {short_repr(given)}, and must be a dict: write "
            f"{{'ann': 5}}"
        )
    weights = dict(cast("Mapping[str, int]", given))
    if len(weights) > MAX_WEIGHTED_KEYS:
        raise InvalidArgument(
            f"key_weights of queue {short_repr(queue)} has {len(weights)} keys: give at most "
            f"{MAX_WEIGHTED_KEYS} a weight"
        )
    for key, weight in weights.items():
        if key != "":
            bounds.check_name(f"a key of key_weights of queue {short_repr(queue)}", key, bounds.MAX_ID_BYTES)
        bounds.check_count(
            f"key_weights[{short_repr(key)}] of queue {short_repr(queue)}", weight, 1, MAX_KEY_WEIGHT
        )
    return weights


def queue_info(row: Any) -> QueueInfo:
    """Converts a row of the native engine to a queue."""
    name, limits, is_paused, version, changed_at = row
    concurrency, worker_concurrency, key_concurrency, rate, key_rate, max_depth, key_weights = limits
    return QueueInfo(
        name=name,
        concurrency=concurrency,
        worker_concurrency=worker_concurrency,
        key_concurrency=key_concurrency,
        rate=_to_rate(rate),
        key_rate=_to_rate(key_rate),
        max_depth=max_depth,
        key_weights=key_weights,
        is_paused=is_paused,
        version=version,
        changed_at=to_datetime(changed_at),
    )


def queue_infos(rows: Any) -> list[QueueInfo]:
    """Converts rows of the native engine to queues."""
    return [queue_info(row) for row in rows]


def _to_rate(rate: RateTuple | None) -> Rate | None:
    if rate is None:
        return None
    starts, milliseconds, burst = rate
    return Rate(starts, milliseconds / 1000, burst=burst)


def _rate_tuple(rate: Rate | None) -> RateTuple | None:
    return None if rate is None else (rate.starts, round(rate.per * 1000), rate.burst)


def queue_tuple(queue: Any, where: str = "") -> QueueTuple:
    """Converts a queue for the native engine.

    Args:
        queue: The queue, as the caller has given it.
        where: The place at which the caller gave it, for the error message.

    Raises:
        InvalidArgument: The value is no `Queue`.
    """
    if not isinstance(queue, Queue):
        example = f"Queue({short_repr(queue)})" if isinstance(queue, str) else "Queue('…')"
        raise InvalidArgument(f"{short_repr(queue)}{where} is no queue: write {example}")
    return (
        queue.name,
        queue.concurrency,
        queue.worker_concurrency,
        queue.key_concurrency,
        _rate_tuple(queue.rate),
        _rate_tuple(queue.key_rate),
        queue.max_depth,
        dict(queue.key_weights),
    )


def declared_queues(queues: Any) -> list[tuple[QueueTuple, str]]:
    """Returns the queues that an engine or a client declares, each with its `on_conflict`.

    Raises:
        InvalidArgument: A value is no queue, or two queues have the same name.
    """
    given = _to_list("queues", queues, "Queue('emails')")
    listed = [(queue_tuple(queue, " in queues"), queue.on_conflict) for queue in given]
    names = [name for (name, *_), _ in listed]
    duplicates = {name for name in names if names.count(name) > 1}
    if duplicates:
        raise InvalidArgument(f"queues has {short_repr(min(duplicates))} more than once: declare it once")
    return listed


def served_queues(queues: Any) -> list[str] | None:
    """Returns the names of the queues from which an engine takes executions; `None` for all queues.

    Raises:
        InvalidArgument: A value is neither the name of a queue nor a `Queue`.
    """
    if queues is None:
        return None
    given = _to_list("serve_queues", queues, f"'emails', {DEFAULT_QUEUE!r}")
    return [queue_name(queue, "a queue of serve_queues") for queue in given]


def _to_list(what: str, given: Any, example: str) -> list[Any]:
    """Returns an iterable as a list. Rejects a single queue that was given without a list."""
    if isinstance(given, (str, Queue)) or not hasattr(given, "__iter__"):
        raise InvalidArgument(f"{what} is {short_repr(given)}, and must be a list, as in {what}=[{example}]")
    return list(given)


def queue_name(queue: Any, what: str = "the queue's name") -> str:
    """Returns the name of a queue that is given by its name or as a `Queue`.

    Args:
        queue: The queue, as the caller has given it.
        what: The name of the option, for the error message.

    Raises:
        InvalidArgument: The value is neither a name nor a `Queue`.
    """
    if isinstance(queue, Queue):
        return queue.name
    bounds.check_name(what, queue)
    return cast("str", queue)


__all__ = ["Queue", "QueueInfo", "Rate"]
