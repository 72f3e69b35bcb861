"""Outboxes: executions that begin if, and only if, a transaction of the caller's own commits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, ParamSpec, Self, TypeVar

from stepfast._engine.base import in_workflow
from stepfast._options.queue import Queue, check_ticket
from stepfast._options.start_options import due_of
from stepfast._outbox.connection import post, post_here
from stepfast._outbox.message import Letter, letter_of
from stepfast._runtime.branch import current_branch
from stepfast._validation import bounds
from stepfast._validation.attributes import check_attributes
from stepfast._validation.text import short_repr
from stepfast._workflow.binding import unbind
from stepfast._workflow.workflow import BoundWorkflow, Workflow
from stepfast.errors import InvalidArgument

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Place:
    """What an execution of an outbox is told besides its arguments."""

    workflow_id: str | None = None
    timeout: float | None = None
    run_timeout: float | None = None
    queue: str | None = None
    key: str | None = None
    priority: int | None = None
    dedup_id: str | None = None
    delay: float | None = None
    start_at: datetime | None = None
    attributes: dict[str, str] | None = None


class Mail:
    """What both kinds of outboxes have in common."""

    def __init__(self, schema: str, *, notify: bool, shard: int) -> None:
        bounds.check_name("schema", schema)
        bounds.check_flag("notify", notify)
        bounds.check_count("shard", shard, 0, 1023)
        self._schema, self._notify, self._shard, self._place = schema, notify, shard, Place()

    def _with(self, place: Place) -> Self:
        other = type(self)(self._schema, notify=self._notify, shard=self._shard)
        other._place = place
        return other

    def _letter(self, workflow: Any, args: tuple[Any, ...], kwargs: dict[str, Any], place: Place) -> Letter:
        if current_branch() is not None:
            raise in_workflow("start", workflow)
        check_ticket(place.queue, place.key, place.priority, place.dedup_id)
        signature = None
        if not isinstance(workflow, str):
            workflow, args = unbind(workflow, args)
        if isinstance(workflow, Workflow):
            workflow, signature = workflow.name, workflow.signature
        if not isinstance(workflow, str):
            raise InvalidArgument(
                f"{short_repr(workflow)} is no workflow: give a connection, a workflow, then its arguments, "
                "as in outbox.start(connection, checkout, order)"
            )
        bounds.check_name("the workflow's name", workflow)
        return letter_of(workflow, args, kwargs, place, signature, self._shard)

    def options(
        self,
        *,
        workflow_id: str | None = None,
        timeout: float | None = None,
        run_timeout: float | None = None,
        queue: str | Queue | None = None,
        key: str | None = None,
        priority: int | None = None,
        dedup_id: str | None = None,
        delay: float | None = None,
        start_at: datetime | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> Self:
        """The outbox, to start executions with options, as in
        `outbox.options(queue="emails").start(connection, send, "ann")`.

        Args:
            workflow_id: The execution's id, as of `Engine.start`. Where it is there already, nothing is
                started; with another workflow or other arguments, the start becomes a dead letter.
            timeout: After so many seconds it is cancelled unless it has ended; never by default.
            run_timeout: The same, counted from when it begins.
            queue: The queue that it waits in; none by default.
            key: Its key within the queue. None by default.
            priority: Smaller comes first among those of its queue and key; 0 by default.
            dedup_id: If one of its queue has this and has not ended, nothing is started. None by default.
            delay: It begins not before so many seconds after this. At once by default.
            start_at: The same as a time: a datetime with a time zone.
            attributes: Names with values that it is found by, as of `Engine.options`. None by default.

        Returns:
            An outbox with these.

        Raises:
            InvalidArgument: An option is out of its bounds.
        """
        bounds.check_start_options(workflow_id, timeout, None)
        bounds.check_limit("run_timeout", run_timeout)
        # `enqueue` has the queue, where the options have none
        name = check_ticket(queue, key, priority, dedup_id, needs_queue=False)
        due_of(delay, start_at)
        found_by = None if attributes is None else check_attributes(attributes)
        return self._with(
            Place(workflow_id, timeout, run_timeout, name, key, priority, dedup_id, delay, start_at, found_by)
        )


class Outbox(Mail):
    """Starts executions in transactions of the caller's own, on connections of psycopg (`Connection`,
    `Cursor`), SQLAlchemy (`Session`, `Connection`) and sqlite3. They exist if, and only if, that transaction
    commits: then a worker makes them what they are, as soon as it has room.

    It opens nothing and needs no engine: but the database must be one that an engine or `stepfast db migrate`
    has prepared, and the caller's own tables stand in the same one.

    Args:
        schema: Of Postgres, the schema that holds the engine's tables.
        notify: Of Postgres, whether workers are told at the commit; else one sees it within a second. Commits
            that tell come one after the other in the whole server.
        shard: The number of the shard that the database is, as its table `shard` says: 0 for a store alone. A
            start for another shard becomes a dead letter.

    Raises:
        InvalidArgument: One of them is out of its bounds.
    """

    def __init__(self, schema: str = "stepfast", *, notify: bool = True, shard: int = 0) -> None:
        super().__init__(schema, notify=notify, shard=shard)

    def start(
        self,
        connection: Any,
        workflow: Workflow[P, R] | BoundWorkflow[P, R] | str,
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> str:
        """Starts an execution in the transaction of this connection, which is neither committed nor rolled
        back. All arguments by name are the workflow's: what is to be told besides stands in `options`.

        Args:
            connection: Of psycopg, SQLAlchemy or sqlite3.
            workflow: A workflow, or its name: it need not be known here.

        Returns:
            Its workflow_id: for `engine.get`, once the transaction is committed and a worker has seen it.

        Raises:
            InvalidArgument: The connection is none of these, or it is none of a workflow's calls, or a call in
                one.
            EncodeError: An argument cannot be recorded.
        """
        letter = self._letter(workflow, args, kwargs, self._place)
        post_here(connection, letter, self._schema, self._notify)
        return letter.workflow_id

    def enqueue(
        self,
        connection: Any,
        queue: str | Queue,
        workflow: Workflow[P, R] | BoundWorkflow[P, R] | str,
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> str:
        """The same, put into a queue: `outbox.options(key="ann").enqueue(connection, "emails", send, "ann")`.

        Args:
            connection: Of psycopg, SQLAlchemy or sqlite3.
            queue: The queue, or its name. One that nobody has declared has no limits.
            workflow: A workflow, or its name.

        Returns:
            Its workflow_id.

        Raises:
            InvalidArgument: As of `start`.
            EncodeError: An argument cannot be recorded.
        """
        place = replace(self._place, queue=check_ticket(queue))
        letter = self._letter(workflow, args, kwargs, place)
        post_here(connection, letter, self._schema, self._notify)
        return letter.workflow_id


class AsyncOutbox(Mail):
    """An `Outbox` for connections whose calls are awaited: of asyncpg, psycopg (`AsyncConnection`,
    `AsyncCursor`) and SQLAlchemy (`AsyncSession`, `AsyncConnection`).

    Args:
        schema: As of `Outbox`.
        notify: As of `Outbox`.
        shard: As of `Outbox`.

    Raises:
        InvalidArgument: One of them is out of its bounds.
    """

    def __init__(self, schema: str = "stepfast", *, notify: bool = True, shard: int = 0) -> None:
        super().__init__(schema, notify=notify, shard=shard)

    async def start(
        self,
        connection: Any,
        workflow: Workflow[P, R] | BoundWorkflow[P, R] | str,
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> str:
        """See `Outbox.start`."""
        letter = self._letter(workflow, args, kwargs, self._place)
        await post(connection, letter, self._schema, self._notify)
        return letter.workflow_id

    async def enqueue(
        self,
        connection: Any,
        queue: str | Queue,
        workflow: Workflow[P, R] | BoundWorkflow[P, R] | str,
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> str:
        """See `Outbox.enqueue`."""
        place = replace(self._place, queue=check_ticket(queue))
        letter = self._letter(workflow, args, kwargs, place)
        await post(connection, letter, self._schema, self._notify)
        return letter.workflow_id


__all__ = ["AsyncOutbox", "Outbox"]
