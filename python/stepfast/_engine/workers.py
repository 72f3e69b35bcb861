"""The workers of a database, and the executions that none of them can run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from stepfast._validation.times import to_datetime, to_datetime_or_none


@dataclass(frozen=True, slots=True)
class Worker:
    """An engine or a client that is registered with a database.

    Attributes:
        id: The number of the engine or client in the database.
        host: The name of the machine on which its process runs.
        pid: The id of its process on that machine.
        is_alive: Whether it seems to be alive. On Postgres a worker is alive while its lease has not expired.
        is_client: Whether it is a client, which runs no executions.
        app_version: The version of the code that it runs; `None` if it has no version.
        workflows: The names of the workflows that it can run.
        running: The number of executions that it runs.
        registered_at: The time at which it registered.
        lease_expires_at: The time at which its lease expires unless a heartbeat renews it; `None` on SQLite.
    """

    id: int
    host: str
    pid: int
    is_alive: bool
    is_client: bool
    app_version: str | None
    workflows: tuple[str, ...]
    running: int
    registered_at: datetime
    lease_expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class Unclaimable:
    """Ready executions of one workflow that no live worker can run.

    Attributes:
        workflow: The name of the workflow.
        app_version: The version of the code that a worker needs to run the executions; `None` for any
            version.
        executions: The number of executions.
        is_version_missing: Whether live workers have the workflow, but only in other versions. False if no
            live worker has the workflow.
    """

    workflow: str
    app_version: str | None
    executions: int
    is_version_missing: bool


@dataclass(frozen=True, slots=True)
class WorkerOverview:
    """The workers of a database, and the executions that none of them can run.

    Attributes:
        workers: Engines and clients, the oldest first. A dead engine is listed until another worker takes it
            over.
        unclaimable: Ready executions that no live worker can run, because none has the workflow in the
            version that the executions need.
    """

    workers: tuple[Worker, ...]
    unclaimable: tuple[Unclaimable, ...]


def worker_overview(rows: Any) -> WorkerOverview:
    """Converts the rows of the native engine to an overview."""
    workers, unclaimable = rows
    return WorkerOverview(
        tuple(_worker(*row) for row in workers), tuple(Unclaimable(*row) for row in unclaimable)
    )


def _worker(identity: Any, workflows: Any, running: int, registered_at: int, lease: int | None) -> Worker:
    id, host, pid, is_alive, is_client, app_version = identity
    return Worker(
        id=id,
        host=host,
        pid=pid,
        is_alive=is_alive,
        is_client=is_client,
        app_version=app_version,
        workflows=tuple(workflows),
        running=running,
        registered_at=to_datetime(registered_at),
        lease_expires_at=to_datetime_or_none(lease),
    )


__all__ = ["Unclaimable", "Worker", "WorkerOverview"]
