"""How an execution is started, as the engine takes it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from stepfast import _native
from stepfast._options.queue import OnDuplicate, OnFull, check_ticket
from stepfast._validation import bounds
from stepfast._validation.attributes import check_attributes
from stepfast._validation.text import short_repr
from stepfast.errors import InvalidArgument

StartOptions = _native.StartOptions
#: As the engine takes it: whether it is an instant, and in microseconds.
Due = tuple[bool, int]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def order_of(
    *,
    workflow_id: Any = None,
    timeout: Any = None,
    run_timeout: Any = None,
    patience: Any = None,
    queue: Any = None,
    key: Any = None,
    priority: Any = None,
    dedup_id: Any = None,
    on_duplicate: OnDuplicate = "reject",
    on_full: OnFull = "reject",
    delay: Any = None,
    start_at: Any = None,
    debounce: Any = None,
    max_delay: Any = None,
    attributes: Any = None,
) -> StartOptions:
    """How an execution is started with these options. See `Engine.options`.

    Raises:
        InvalidArgument: One of them is out of its bounds, or does not go with another.
    """
    bounds.check_start_options(workflow_id, timeout, patience)
    bounds.check_limit("run_timeout", run_timeout)
    if debounce is not None and attributes:
        raise InvalidArgument("debounce does not go with attributes")
    return StartOptions(
        workflow_id=workflow_id,
        execution_timeout=timeout,
        run_timeout=run_timeout,
        wait_timeout=patience,
        queue=check_ticket(queue, key, priority, dedup_id, on_duplicate, on_full, debounce, max_delay),
        key=key,
        priority=priority,
        due=due_of(delay, start_at),
        dedup_id=dedup_id,
        returns_existing=on_duplicate == "return_existing",
        waits_if_full=on_full == "wait",
        debounce=debounce,
        max_delay=max_delay,
        attributes=None if attributes is None else check_attributes(attributes),
    )


def due_of(delay: Any, start_at: Any) -> Due | None:
    """When an execution may begin; `None` for at once.

    Raises:
        InvalidArgument: One of them is none of what it must be, or both are given.
    """
    if delay is not None and start_at is not None:
        raise InvalidArgument("delay and start_at are both given: give one of them")
    if delay is not None:
        # centuries are as good as for ever
        bounds.check_number("delay", delay, 0, 1e11)
        return False, round(delay * 1e6)
    if start_at is None:
        return None
    if not isinstance(start_at, datetime) or start_at.tzinfo is None:
        raise InvalidArgument(
            f"start_at is {short_repr(start_at)}, and must be a datetime with a time zone, as in "
            "datetime.now(timezone.utc) + timedelta(hours=1)"
        )
    return True, (start_at - _EPOCH) // timedelta(microseconds=1)
