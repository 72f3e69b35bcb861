"""How an execution is started, as the engine takes it."""

from __future__ import annotations

from typing import Any

from stepfast import _native, bounds
from stepfast.attributes import checked
from stepfast.due import due_of
from stepfast.errors import Invalid
from stepfast.queue import OnDuplicate, OnFull, check_ticket

Order = _native.Order


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
) -> Order:
    """How an execution is started with these options. See `Engine.options`.

    Raises:
        Invalid: One of them is out of its bounds, or does not go with another.
    """
    bounds.of_order(workflow_id, timeout, patience)
    bounds.limit("run_timeout", run_timeout)
    if debounce is not None and attributes:
        raise Invalid("debounce does not go with attributes")
    return Order(
        workflow_id=workflow_id,
        timeout=timeout,
        run_timeout=run_timeout,
        patience=patience,
        queue=check_ticket(queue, key, priority, dedup_id, on_duplicate, on_full, debounce, max_delay),
        key=key,
        priority=priority,
        due=due_of(delay, start_at),
        dedup_id=dedup_id,
        returns_existing=on_duplicate == "return_existing",
        waits_if_full=on_full == "wait",
        debounce=debounce,
        max_delay=max_delay,
        attributes=None if attributes is None else checked(attributes),
    )
