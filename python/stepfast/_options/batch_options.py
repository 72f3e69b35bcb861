"""The options of batches, and the checks of these options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypedDict

from stepfast._options.queue import Queue
from stepfast._options.start_options import CheckedOptions, check_options
from stepfast._validation import bounds
from stepfast._validation.durations import Duration
from stepfast._validation.text import short_repr

#: The options of starts that a batch can have.
BATCH_OPTIONS: Final = ("run_timeout", "queue", "key", "priority", "attributes")

#: The options of starts that a batch cannot have. Each text gives the reason and the remedy.
_NOT_FOR_BATCHES: Final[dict[str, str]] = {
    "workflow_id": "gives each item an id of its own: give batch_id= for the id of the batch",
    **dict.fromkeys(
        ("dedup_id", "on_duplicate", "debounce", "max_delay"),
        "starts many executions, of which only one can have it: leave it out, or call start for each",
    ),
    **dict.fromkeys(
        ("execution_timeout", "delay", "start_at"),
        "gives no item times of its own: leave it out, or call start_many",
    ),
    "wait_timeout": "waits until all items are durable: leave it out",
    "on_full": "submits all items, even to a full queue: leave it out",
}


class ChildBatchOptions(TypedDict, total=False):
    """The options of a batch that a workflow submits: `resize.submit_batch(inputs, queue="photos")`. None is
    the same as leaving the option out.

    Attributes:
        run_timeout: The time limit of each item, from the moment at which the item begins to its end, in
            seconds or as a `timedelta`; see `StartOptions`. If the worker of an item dies before the item was
            suspended, the time starts again. No limit by default.
        queue: The queue in which the items wait for a worker, as its name or as a `Queue`. By default the
            items have no queue.
        key: The key of the items within the queue; see `StartOptions`. None by default.
        priority: The priority of the items among executions of the same queue and key: smaller numbers come
            first. 0 by default.
        attributes: Names with values by which lists find the batch; see `StartOptions`. None by default.
    """

    run_timeout: Duration | None
    queue: str | Queue | None
    key: str | None
    priority: int | None
    attributes: Mapping[str, str] | None


class BatchOptions(ChildBatchOptions, total=False):
    """The options of a batch: `engine.submit_batch(resize, inputs, batch_id="photos", queue="photos")`. The
    other options are those of `ChildBatchOptions`.

    Attributes:
        batch_id: The id of the batch, at most 1,024 bytes. The id makes the submission idempotent: a second
            submission with the same id, workflow and inputs continues where the first one ended, and returns
            the same batch. By default the id is generated.
    """

    batch_id: str | None


def check_batch_options(given: Mapping[str, Any], configured: CheckedOptions | None) -> CheckedOptions | None:
    """Checks the options of a batch, and returns them; None if there are none. The id of the batch becomes
    the workflow_id of the returned options.

    Args:
        given: The options by name; see `BatchOptions`.
        configured: The options of the workflow. `given` takes precedence.

    Raises:
        InvalidArgument: An option is out of its bounds, or is not an option of batches.
        TypeError: There is no such option.
    """
    values: dict[str, Any] = {}
    if configured is not None:
        configured.refuse(_NOT_FOR_BATCHES, "submit_batch")
        values.update(configured.values)
    for name, value in given.items():
        if name != "batch_id" and name not in BATCH_OPTIONS:
            known = ", ".join(("batch_id", *BATCH_OPTIONS))
            raise TypeError(f"{short_repr(name)} is not an option of batches; the options are {known}")
        if value is None:
            continue
        if name == "batch_id":
            bounds.check_name("batch_id", value, bounds.MAX_ID_BYTES)
            name = "workflow_id"
        values[name] = value
    return check_options(values) if values else None


__all__ = ["BATCH_OPTIONS", "BatchOptions", "ChildBatchOptions", "check_batch_options"]
