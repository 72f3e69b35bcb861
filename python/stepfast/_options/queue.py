"""Queues: where executions wait, and under which limits they leave it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, cast, get_args

from stepfast._validation import bounds
from stepfast._validation.text import short_repr
from stepfast._validation.times import to_datetime
from stepfast.errors import InvalidArgument

#: What is without a queue is called so where queues are served.
DEFAULT: Final = "default"
#: What may be done where a queue is stored with other limits.
POLICIES: Final = ("update", "keep", "refuse")

#: The largest weight of a key, and how many keys of a queue may have one.
WEIGHT: Final = 1_000
WEIGHTED_KEYS: Final = 1_000

#: A rate as the engine takes it: starts, milliseconds, burst.
ToldRate = tuple[int, int, int | None]
#: A queue as the engine takes it: its name; its limits in all processes, in a worker, of a key; its rate,
#: and that of a key; how many may wait in it; the weights of its keys.
Told = tuple[
    str,
    int | None,
    int | None,
    int | None,
    ToldRate | None,
    ToldRate | None,
    int | None,
    dict[str, int],
]
#: What a start comes to whose dedup_id another execution of the queue has that has not ended.
OnDuplicate = Literal["reject", "return_existing"]
#: What a start comes to whose queue is full.
OnFull = Literal["reject", "wait"]


@dataclass(frozen=True, slots=True)
class Rate:
    """How often executions begin: at most `starts` in any `per` seconds, as fast as they come; or, with a
    `burst`, spaced evenly.

    An execution begins when an engine takes it: for the first time, or again after its engine was lost, it
    was handed on, or somebody resumed it. One that goes on after it has waited does not begin again.

    Args:
        starts: How many, at least 1.
        per: In how many seconds, from 0.001 to a year.
        burst: With it they are spaced evenly, one every `per / starts` seconds, and so many may begin at once
            after a pause: 1 for none. Without it they come as fast as they can until there were `starts`.

    Raises:
        InvalidArgument: One of them is out of its bounds.
    """

    starts: int
    per: float
    _: KW_ONLY
    burst: int | None = None

    def __post_init__(self) -> None:
        bounds.check_count("the starts of a rate", self.starts, 1, bounds.MAX_QUEUE_LIMIT)
        bounds.check_number("the seconds of a rate", self.per, 0.001, 366 * 86_400)
        if self.burst is not None:
            bounds.check_count("the burst of a rate", self.burst, 1, bounds.MAX_QUEUE_LIMIT)


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue and its limits, as code declares it: `Engine(url, queues=[Queue("emails", concurrency=100)])`.
    An execution that waits, for a time or a child, counts for no limit.

    Args:
        name: Its name, at most 255 bytes; `default` is what has no queue.
        concurrency: Most executions of it that run at a time in all processes together, at least 1; no limit
            by default.
        worker_concurrency: Most that run at a time in any one engine; no limit by default.
        key_concurrency: Most of any one key that run at a time in all processes together; no limit by
            default.
        rate: How often its executions begin, in all processes together; as often as they can by default.
        key_rate: How often those of any one key begin.
        max_depth: Most executions that wait in it for their beginning, delayed ones included, at least 1; no
            limit by default. What more is started raises `QueueFull`, or waits for room, as its caller says;
            what a workflow starts in it is never refused.
        key_weights: Keys that have more turns than others, which have one, and how many, 1 to 1,000: where
            places are short, so many times their share. At most 1,000 keys.
        on_conflict: What happens where the queue is stored with other limits when an engine opens that
            declares it: `update` stores these, for all processes at once; `keep` leaves what is stored;
            `refuse` raises `QueueConflict`.

    Raises:
        InvalidArgument: One of them is out of its bounds.
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
    on_conflict: Literal["update", "keep", "refuse"] = "update"

    def __post_init__(self) -> None:
        bounds.check_name("the queue's name", self.name)
        if self.name == DEFAULT:
            raise InvalidArgument(
                f"the queue's name is {DEFAULT!r}, which is what has no queue and no limits: choose another"
            )
        for what in ("concurrency", "worker_concurrency", "key_concurrency", "max_depth"):
            limit = getattr(self, what)
            if limit is None:
                continue
            if limit == 0:
                raise InvalidArgument(
                    f"{what} of queue {short_repr(self.name)} is {short_repr(limit)}, and must be at least "
                    "1: to stop a queue, pause it"
                )
            bounds.check_count(f"{what} of queue {short_repr(self.name)}", limit, 1, bounds.MAX_QUEUE_LIMIT)
        for what in ("rate", "key_rate"):
            given = getattr(self, what)
            if given is not None and not isinstance(given, Rate):
                raise InvalidArgument(
                    f"{what} of queue {short_repr(self.name)} is {short_repr(given)}, and must be a Rate: "
                    "write Rate(100, per=60)"
                )
        # a copy, so that it stays as it was checked
        object.__setattr__(self, "key_weights", weights_of(self.name, self.key_weights))
        if self.on_conflict not in POLICIES:
            raise InvalidArgument(
                f"on_conflict of queue {short_repr(self.name)} is {short_repr(self.on_conflict)}, and must "
                f"be one of {', '.join(map(repr, POLICIES))}"
            )


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue as it is stored.

    Attributes:
        name: Its name.
        concurrency: Most executions of it that run at a time in all processes together; `None` for no limit.
        worker_concurrency: Most that run at a time in any one engine.
        key_concurrency: Most of any one key that run at a time in all processes together.
        rate: How often its executions begin; `None` for as often as they can.
        key_rate: How often those of any one key begin.
        max_depth: Most executions that wait in it for their beginning; `None` for no limit.
        key_weights: Keys that have more turns than others, and how many.
        is_paused: True while nothing leaves it.
        version: How often it was changed, its creation included.
        changed_at: When it was changed last.
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


def weights_of(queue: str, given: Any) -> dict[str, int]:
    """The weights of a queue's keys.

    Raises:
        InvalidArgument: They are none.
    """
    if not isinstance(given, Mapping):
        raise InvalidArgument(
            f"key_weights of queue {short_repr(queue)} is {short_repr(given)}, and must be a dict: write "
            f"{{'ann': 5}}"
        )
    weights = dict(cast("Mapping[str, int]", given))
    if len(weights) > WEIGHTED_KEYS:
        raise InvalidArgument(
            f"key_weights of queue {short_repr(queue)} has {len(weights)} keys: give at most {WEIGHTED_KEYS} "
            "a weight"
        )
    for key, weight in weights.items():
        if key != "":
            bounds.check_name(f"a key of key_weights of queue {short_repr(queue)}", key, bounds.MAX_ID_BYTES)
        bounds.check_count(f"key_weights[{short_repr(key)}] of queue {short_repr(queue)}", weight, 1, WEIGHT)
    return weights


def info_of(row: Any) -> QueueInfo:
    """The queue of a row of the engine."""
    name, limits, is_paused, version, changed_at = row
    concurrency, worker_concurrency, key_concurrency, rate, key_rate, max_depth, key_weights = limits
    return QueueInfo(
        name=name,
        concurrency=concurrency,
        worker_concurrency=worker_concurrency,
        key_concurrency=key_concurrency,
        rate=rate_of(rate),
        key_rate=rate_of(key_rate),
        max_depth=max_depth,
        key_weights=key_weights,
        is_paused=is_paused,
        version=version,
        changed_at=to_datetime(changed_at),
    )


def rate_of(told: ToldRate | None) -> Rate | None:
    """The rate that the engine tells of."""
    if told is None:
        return None
    starts, milliseconds, burst = told
    return Rate(starts, milliseconds / 1000, burst=burst)


def told_rate(rate: Rate | None) -> ToldRate | None:
    """A rate for the engine."""
    return None if rate is None else (rate.starts, round(rate.per * 1000), rate.burst)


def told(queue: Any, where: str = "") -> Told:
    """A queue for the engine.

    Raises:
        InvalidArgument: It is none.
    """
    if not isinstance(queue, Queue):
        example = f"Queue({short_repr(queue)})" if isinstance(queue, str) else "Queue('…')"
        raise InvalidArgument(f"{short_repr(queue)}{where} is no queue: write {example}")
    return (
        queue.name,
        queue.concurrency,
        queue.worker_concurrency,
        queue.key_concurrency,
        told_rate(queue.rate),
        told_rate(queue.key_rate),
        queue.max_depth,
        dict(queue.key_weights),
    )


def declared(queues: Any) -> list[tuple[Told, str]]:
    """The queues that an engine declares, each with what to do where it is stored with other limits.

    Raises:
        InvalidArgument: They are no queues, or two of them have the same name.
    """
    given = each("queues", queues, "Queue('emails')")
    listed = [(told(queue, " in queues"), queue.on_conflict) for queue in given]
    names = [name for (name, *_), _ in listed]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise InvalidArgument(f"queues has {short_repr(min(twice))} more than once: declare it once")
    return listed


def served(serve: Any) -> list[str] | None:
    """The names of the queues that an engine serves; `None` for all.

    Raises:
        InvalidArgument: They are no names.
    """
    if serve is None:
        return None
    return [name_of(queue, "a queue of serve") for queue in each("serve", serve, f"'emails', {DEFAULT!r}")]


def each(what: str, given: Any, example: str) -> list[Any]:
    """What is given as a list, or any other iterable.

    Raises:
        InvalidArgument: It is one thing.
    """
    if isinstance(given, (str, Queue)) or not hasattr(given, "__iter__"):
        raise InvalidArgument(f"{what} is {short_repr(given)}, and must be a list, as in {what}=[{example}]")
    return list(given)


def name_of(queue: Any, what: str = "the queue's name") -> str:
    """The name of a queue that is given by it, or as it was declared.

    Raises:
        InvalidArgument: It is neither.
    """
    if isinstance(queue, Queue):
        return queue.name
    bounds.check_name(what, queue)
    return cast("str", queue)


def check_ticket(
    queue: Any,
    key: Any = None,
    priority: Any = None,
    dedup_id: Any = None,
    on_duplicate: Any = "reject",
    on_full: Any = "reject",
    debounce: Any = None,
    max_delay: Any = None,
    *,
    needs_queue: bool = True,
) -> str | None:
    """The name of the queue that an execution is to stand in; `None` where it has none. Unless it
    `needs_queue`, the queue of the others comes later.

    Raises:
        InvalidArgument: One of them is out of its bounds, or there is no queue for the others.
    """
    for what, given, policies in (
        ("on_duplicate", on_duplicate, get_args(OnDuplicate)),
        ("on_full", on_full, get_args(OnFull)),
    ):
        if given not in policies:
            known = " or ".join(f'"{policy}"' for policy in policies)
            raise InvalidArgument(f"{what} is {short_repr(given)}, and must be {known}")
    if on_duplicate != "reject" and dedup_id is None:
        raise InvalidArgument(
            f"on_duplicate is {short_repr(on_duplicate)}, and there is no dedup_id for it: give dedup_id= too"
        )
    if queue is None and needs_queue:
        beside = {"key": key, "priority": priority, "dedup_id": dedup_id, "debounce": debounce}
        beside["on_full"] = None if on_full == "reject" else on_full
        for what, given in beside.items():
            if given is not None:
                raise InvalidArgument(
                    f"{what} is {short_repr(given)}, and there is no queue for it: give queue= too"
                )
    name = None if queue is None else name_of(queue)
    if name == DEFAULT:
        raise InvalidArgument(f"queue is {DEFAULT!r}, which is what has no queue: leave it out")
    if key is not None:
        bounds.check_name("key", key, bounds.MAX_ID_BYTES)
    if priority is not None:
        bounds.check_count("priority", priority, -(2**31), 2**31 - 1)
    if dedup_id is not None:
        bounds.check_name("dedup_id", dedup_id, bounds.MAX_ID_BYTES)
    if debounce is not None:
        bounds.check_name("debounce", debounce, bounds.MAX_ID_BYTES)
    if max_delay is not None:
        bounds.check_number("max_delay", max_delay, 0, 1e11)
    return name


__all__ = ["Queue", "QueueInfo", "Rate"]
