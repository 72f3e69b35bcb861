"""Who works on a database, and what nobody there can run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from stepfast._validation.times import to_datetime, to_datetime_or_none


@dataclass(frozen=True, slots=True)
class Worker:
    """An engine, or a client, that is registered with a database.

    Attributes:
        id: Its number in the database.
        host: Name of its machine.
        pid: Number of its process there.
        is_alive: True if it seems to be alive; on Postgres, if its lease has not run out.
        is_client: True if it runs nothing.
        app_version: The version of the code that it runs, where it was told.
        workflows: Names of the workflows that it can run.
        running: How many executions it runs.
        registered_at: Since when.
        lease_expires_at: Until when it counts as alive without renewing; `None` on SQLite.
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
    """Executions that wait for a worker which is not there.

    Attributes:
        workflow: Their workflow.
        app_version: The version of the code that they are pinned to.
        executions: How many they are.
        is_version_missing: True if live workers have the workflow, but none of that version; False if none
            has the workflow.
    """

    workflow: str
    app_version: str | None
    executions: int
    is_version_missing: bool


@dataclass(frozen=True, slots=True)
class Survey:
    """Who works on a database, and what waits for somebody who does not.

    Attributes:
        workers: Engines and clients, lost ones too until they are taken over; the oldest first.
        unclaimable: Executions that could run now, if a worker had their workflow in their version.
    """

    workers: tuple[Worker, ...]
    unclaimable: tuple[Unclaimable, ...]


def survey_of(seen: Any) -> Survey:
    """The survey of what the engine has seen."""
    workers, unclaimable = seen
    return Survey(tuple(worker_of(*row) for row in workers), tuple(Unclaimable(*row) for row in unclaimable))


def worker_of(about: Any, workflows: Any, running: int, registered_at: int, lease: int | None) -> Worker:
    """The worker of a row of the engine."""
    id, host, pid, is_alive, is_client, app_version = about
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
