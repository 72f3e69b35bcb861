"""Outboxes: starts and messages that take effect if, and only if, a transaction of the caller commits."""

from __future__ import annotations

from typing import Any, Final, ParamSpec, TypeVar, overload

from stepfast._engine.open_engine import called_in_workflow_error
from stepfast._outbox.connection import insert_row, insert_row_async
from stepfast._outbox.inbox_row import InboxRow, inbox_row, message_row
from stepfast._runtime.branch import current_branch
from stepfast._validation import bounds
from stepfast._validation.message import check_message
from stepfast._validation.text import short_repr
from stepfast._workflow.messaging.messages import DEFAULT_TOPIC
from stepfast._workflow.registry import registered_workflow
from stepfast._workflow.remote import RemoteWorkflow, Unspecified
from stepfast._workflow.start_target import start_target
from stepfast._workflow.startable import Startable
from stepfast._workflow.workflow import Workflow
from stepfast.errors import InvalidArgument

P = ParamSpec("P")
R = TypeVar("R")

#: The options that a start of an outbox cannot have. Each text gives the reason and the remedy.
_NOT_FOR_OUTBOXES: Final = {
    "debounce": "starts executions one by one: leave it out, or start it on an engine or a client",
    "max_delay": "starts executions one by one: leave it out, or start it on an engine or a client",
    "wait_timeout": "writes into the caller's transaction, and waits for no engine: leave it out",
    "on_full": "starts executions even in a full queue: leave it out, or start it on an engine or a client",
    "on_duplicate": "starts nothing for a duplicate, and returns no other execution: leave it out",
}


class _OutboxBase:
    """Base of `Outbox` and `AsyncOutbox`."""

    def __init__(self, schema: str = "stepfast", *, notify: bool = True, shard: int = 0) -> None:
        bounds.check_name("schema", schema)
        bounds.check_flag("notify", notify)
        bounds.check_count("shard", shard, 0, 1023)
        self._schema, self._notify, self._shard = schema, notify, shard

    def _row(self, given: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> InboxRow:
        """Returns the inbox row for a start. The parameter `given` is the workflow, as the caller has given
        it."""
        if current_branch() is not None:
            raise called_in_workflow_error("start", given)
        workflow, bound_args, options = start_target(given)
        found: object = workflow
        if not isinstance(found, Workflow | RemoteWorkflow):
            raise InvalidArgument(
                f"{short_repr(workflow)} is no workflow: give a connection, a workflow, then its arguments, "
                "as in outbox.start(connection, checkout, order); for a workflow by its name write "
                "RemoteWorkflow('checkout')"
            )
        if options is not None:
            options.refuse(_NOT_FOR_OUTBOXES, "an outbox")
        defined: Workflow[..., Any] | None = (
            registered_workflow(found.name) if isinstance(found, RemoteWorkflow) else workflow
        )
        signature = None if defined is None else defined.signature
        values = {} if options is None else options.values
        return inbox_row(found.name, (*bound_args, *args), kwargs, values, signature, self._shard)

    def _message_row(
        self, workflow_id: str, value: Any, topic: str, message_id: str | None, keep: bool
    ) -> InboxRow:
        if current_branch() is not None:
            raise InvalidArgument(
                "outbox.send is called in the code of a workflow: call stepfast.send, which sends once"
            )
        bounds.check_storable_text("workflow_id", workflow_id)
        check_message(topic, message_id)
        bounds.check_flag("keep", keep)
        return message_row(workflow_id, value, topic, message_id, keep, self._shard)


class Outbox(_OutboxBase):
    """An outbox, which starts executions and sends messages in transactions of the caller. The connections
    are those of psycopg (`Connection`, `Cursor`), SQLAlchemy (`Session`, `Connection`) and sqlite3. A start
    takes effect if, and only if, the transaction commits. Then the next claim of a worker creates the
    execution.

    An outbox opens no connection and needs no engine. But an engine or `stepfast db migrate` must have
    prepared the database. The caller's own tables must be in the same database.

    Args:
        schema: On Postgres, the schema of the engine's tables; `stepfast` by default.
        notify: On Postgres, whether the commit notifies the workers; True by default. Otherwise a worker sees
            the start within a second. A commit that notifies takes a lock of the whole server for a moment.
        shard: The number of the store, which is in the table `shard` of the store; 0, the default, for a
            single store. A start for another shard becomes a dead letter.

    Raises:
        InvalidArgument: An argument is out of its bounds.
    """

    @overload
    def start(
        self, connection: Any, workflow: Startable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> str: ...

    @overload
    def start(
        self,
        connection: Any,
        workflow: RemoteWorkflow[[Unspecified], Unspecified],
        /,
        *args: Any,
        **kwargs: Any,
    ) -> str: ...

    def start(self, connection: Any, workflow: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Starts an execution in the open transaction of a connection. The outbox neither commits the
        transaction nor rolls it back.

        Args:
            connection: A connection of psycopg, SQLAlchemy or sqlite3.
            workflow: The workflow. It may have options: `outbox.start(connection,
                send.options(queue="emails"), "ann")`. All options are allowed except `debounce`, `max_delay`,
                `wait_timeout`, `on_full` and `on_duplicate`. If the `workflow_id` belongs to an execution of
                another workflow, or with other arguments, the start becomes a dead letter. If an unfinished
                execution of the queue has the `dedup_id`, nothing is started.
            args: The workflow's arguments by position.
            kwargs: The workflow's arguments by name.

        Returns:
            The workflow_id. `Client.get` finds the execution after the commit, once a worker has turned the
            start into an execution.

        Raises:
            InvalidArgument: The connection is of an unknown library, the value is no workflow, an option is
                not allowed here, or the caller is the code of a workflow.
            EncodeError: An argument cannot be recorded.
            TypeError: The workflow does not take these arguments.
        """
        row = self._row(workflow, args, kwargs)
        insert_row(connection, row, self._schema, self._notify)
        return row.workflow_id

    def send(
        self,
        connection: Any,
        workflow_id: str,
        value: Any,
        *,
        topic: str = DEFAULT_TOPIC,
        message_id: str | None = None,
        keep: bool = False,
    ) -> str:
        """Sends a message to an execution in the open transaction of a connection. After the commit, an
        execution of a built-in workflow sends the message. If the receiver has ended or does not exist, that
        execution fails; `resume` sends the message again. The messages of several calls have no order.

        Args:
            connection: A connection of psycopg, SQLAlchemy or sqlite3.
            workflow_id: The workflow_id of the receiver.
            value: The value, of up to 64 KiB encoded.
            topic: The topic under which the receiver waits; `default` by default.
            message_id: An id of the message. A second message with this id to the same execution is not sent
                again. None by default.
            keep: Whether the message is kept if no execution has the workflow_id yet. False by default.

        Returns:
            The workflow_id of the execution that sends the message.

        Raises:
            InvalidArgument: The connection is of an unknown library, no message can have the topic or the id,
                the value is too large, or the caller is the code of a workflow.
            EncodeError: The value cannot be recorded.
        """
        row = self._message_row(workflow_id, value, topic, message_id, keep)
        insert_row(connection, row, self._schema, self._notify)
        return row.workflow_id


class AsyncOutbox(_OutboxBase):
    """An `Outbox` for connections whose calls are awaited: those of asyncpg, psycopg (`AsyncConnection`,
    `AsyncCursor`) and SQLAlchemy (`AsyncSession`, `AsyncConnection`). See `Outbox` for the arguments.

    Raises:
        InvalidArgument: An argument is out of its bounds.
    """

    @overload
    async def start(
        self, connection: Any, workflow: Startable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> str: ...

    @overload
    async def start(
        self,
        connection: Any,
        workflow: RemoteWorkflow[[Unspecified], Unspecified],
        /,
        *args: Any,
        **kwargs: Any,
    ) -> str: ...

    async def start(self, connection: Any, workflow: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Starts an execution in the open transaction of a connection. See `Outbox.start`."""
        row = self._row(workflow, args, kwargs)
        await insert_row_async(connection, row, self._schema, self._notify)
        return row.workflow_id

    async def send(
        self,
        connection: Any,
        workflow_id: str,
        value: Any,
        *,
        topic: str = DEFAULT_TOPIC,
        message_id: str | None = None,
        keep: bool = False,
    ) -> str:
        """Sends a message to an execution in the open transaction of a connection. See `Outbox.send`."""
        row = self._message_row(workflow_id, value, topic, message_id, keep)
        await insert_row_async(connection, row, self._schema, self._notify)
        return row.workflow_id


__all__ = ["AsyncOutbox", "Outbox"]
