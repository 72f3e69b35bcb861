"""Queues, in which executions wait, and the limits under which they leave them."""

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

#: The name of the queue of all executions without a queue of their own, as `serve_queues` and filters use it.
DEFAULT_QUEUE: Final = "default"
#: The policies for a queue that is stored with other limits.
CONFLICT_POLICIES: Final = ("update", "keep", "reject")

#: The maximum weight of a key, and the maximum number of keys of a queue that have a weight.
MAX_KEY_WEIGHT: Final = 1_000
MAX_WEIGHTED_KEYS: Final = 1_000

#: A rate for the engine: starts, period in milliseconds, burst.
RateTuple = tuple[int, int, int | None]
#: A queue for the engine: name; limits of concurrency in all processes, per worker, and per key; rate, and
#: rate per key; maximum depth; weights of keys.
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
    """How often executions begin: at most `starts` in any period of `per`, as fast as they come; or, with a
    `burst`, spaced evenly.

    An execution begins when an engine takes it: for the first time, or again after its worker died, it was
    requeued, or it was resumed. An execution that continues after a wait does not begin again.

    Args:
        starts: The number of starts, at least 1.
        per: The period, as seconds or as a `timedelta`, from 0.001 s to a year. It is kept in seconds.
        burst: With a burst, executions begin evenly spaced, one every `per / starts`, and this many may begin
            at once after a pause: 1 for none. Without a burst they begin as fast as they can until there were
            `starts` of them.

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
        # the class is frozen
        for name, value in (("starts", starts), ("per", seconds), ("burst", burst)):
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue and its limits, as code declares it: `Engine(url, queues=[Queue("emails", concurrency=100)])`.
    An execution that is suspended in a sleep, or in a wait for a child, counts towards no limit.

    Args:
        name: The name, at most 255 bytes. `default` is the queue of the executions without a queue.
        concurrency: The maximum number of its executions that run at a time in all processes together, at
            least 1; no limit by default.
        worker_concurrency: The maximum number that run at a time in any one engine; no limit by default.
        key_concurrency: The maximum number of any one key that run at a time in all processes together; no
            limit by default.
        rate: How often its executions begin, in all processes together; no limit by default.
        key_rate: How often executions of any one key begin; no limit by default.
        max_depth: The maximum number of executions that wait in it for their beginning, delayed ones
            included, at least 1; no limit by default. A further start raises `QueueFull`, or waits for
            capacity, as its `on_full` says. A start from inside a workflow is never rejected.
        key_weights: Keys with a larger share than others, and their weights, 1 to 1,000. Other keys have the
            weight 1: where slots are short, a key gets as many times the share of another as its weight says.
            At most 1,000 keys.
        on_conflict: What happens if the queue is stored with other limits when an engine or client opens that
            declares it: `update` stores these limits, for all processes at once; `keep` leaves the stored
            ones; `reject` raises `QueueConflict`.

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
        # a copy: the caller may change the original later
        object.__setattr__(self, "key_weights", _check_weights(self.name, self.key_weights))
        if self.on_conflict not in CONFLICT_POLICIES:
            raise InvalidArgument(
                f"on_conflict of queue {short_repr(self.name)} is {short_repr(self.on_conflict)}, and must "
                f"be one of {', '.join(map(repr, CONFLICT_POLICIES))}"
            )


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue as it is stored.

    Attributes:
        name: The name.
        concurrency: The maximum number of its executions that run at a time in all processes together; `None`
            for no limit.
        worker_concurrency: The maximum number that run at a time in any one engine; `None` for no limit.
        key_concurrency: The maximum number of any one key that run at a time in all processes together;
            `None` for no limit.
        rate: How often its executions begin; `None` for no limit.
        key_rate: How often executions of any one key begin; `None` for no limit.
        max_depth: The maximum number of executions that wait in it for their beginning; `None` for no limit.
        key_weights: Keys with a larger share than others, and their weights.
        is_paused: Whether the queue is paused: no execution leaves it.
        version: The number of changes of the queue, its creation included.
        changed_at: When the queue was changed last.
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
    """Returns a copy of a queue's weights after checking them."""
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
    """Converts a row of the engine."""
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
    """Converts rows of the engine."""
    return [queue_info(row) for row in rows]


def _to_rate(rate: RateTuple | None) -> Rate | None:
    if rate is None:
        return None
    starts, milliseconds, burst = rate
    return Rate(starts, milliseconds / 1000, burst=burst)


def _rate_tuple(rate: Rate | None) -> RateTuple | None:
    return None if rate is None else (rate.starts, round(rate.per * 1000), rate.burst)


def queue_tuple(queue: Any, where: str = "") -> QueueTuple:
    """Converts a queue for the engine.

    Args:
        queue: The queue, as the caller has given it.
        where: Where it was given, for the message.

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
    """Returns the queues that an engine or a client declares, each with its policy for conflicts.

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
    """Returns the names of the queues that an engine serves; `None` for all.

    Raises:
        InvalidArgument: A value is no name of a queue.
    """
    if queues is None:
        return None
    given = _to_list("serve_queues", queues, f"'emails', {DEFAULT_QUEUE!r}")
    return [queue_name(queue, "a queue of serve_queues") for queue in given]


def _to_list(what: str, given: Any, example: str) -> list[Any]:
    """Returns an iterable as a list; rejects a single queue."""
    if isinstance(given, (str, Queue)) or not hasattr(given, "__iter__"):
        raise InvalidArgument(f"{what} is {short_repr(given)}, and must be a list, as in {what}=[{example}]")
    return list(given)


def queue_name(queue: Any, what: str = "the queue's name") -> str:
    """Returns the name of a queue that is given by its name or as a `Queue`.

    Args:
        queue: The queue, as the caller has given it.
        what: The name of the option, for the message.

    Raises:
        InvalidArgument: The value is neither.
    """
    if isinstance(queue, Queue):
        return queue.name
    bounds.check_name(what, queue)
    return cast("str", queue)


__all__ = ["Queue", "QueueInfo", "Rate"]
