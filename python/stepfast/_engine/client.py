"""`Client`: starts executions for workers elsewhere, in programs without an event loop."""

from __future__ import annotations

import builtins
from collections.abc import Coroutine, Iterable
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from stepfast._engine.batch.handle import BatchHandle
from stepfast._engine.batch.submission import submit_batch
from stepfast._engine.dead_letters import DeadLetter
from stepfast._engine.filter import BulkResult, Filter
from stepfast._engine.handle import Handle
from stepfast._engine.messaging.exchanges import Exchanges
from stepfast._engine.open_engine import OpenEngine
from stepfast._engine.records import Execution, ExecutionOutcome, Record
from stepfast._engine.scheduling.schedule import Schedule, declared_schedules
from stepfast._engine.scheduling.scheduling import Scheduling
from stepfast._engine.workers import WorkerOverview
from stepfast._options.batch_options import BatchOptions
from stepfast._options.queue import Queue, QueueInfo, declared_queues
from stepfast._runtime.branch import forbid_in_workflow
from stepfast._runtime.waiting import wait_for_call
from stepfast._validation import bounds
from stepfast._validation.durations import Duration
from stepfast._workflow.remote import RemoteWorkflow, Unspecified
from stepfast._workflow.startable import Startable

P = ParamSpec("P")
R = TypeVar("R")


class Client(Exchanges, Scheduling):
    """A client, which starts executions that workers elsewhere run, waits for them, and cancels, resumes and
    lists them. A web process, for example, hands work to workers by a client. Any number of threads may use
    one client.

    An `Engine` is a client that also runs executions. A client needs no code of the workflows that it starts:
    see `RemoteWorkflow`. All waiting callers of a client share one listener, and one query to the store at a
    time.

    Args:
        url: The URL of the store that the workers use: `postgres://…` or `sqlite://shop.db`.
        queues: The queues that the client declares when it opens: their limits are stored for all processes.
            None by default. See `Queue`.
        schedules: The schedules that the client declares when it opens: they are stored, and each worker that
            has the workflow runs them. None by default. See `Schedule`.

    Raises:
        InvalidArgument: The store cannot be opened, or an argument is out of its bounds.
        QueueConflict: A queue is stored with other limits, and its `on_conflict` is `reject`.
        ScheduleConflict: A schedule is stored with other values, and its `on_conflict` is `reject`.
        StoreCorrupt: The store is damaged.
        SchemaMismatch: The store was written by a newer version of Stepfast.
        StoreUnavailable: The database is unreachable.
    """

    def __init__(self, url: str, *, queues: Iterable[Queue] = (), schedules: Iterable[Schedule] = ()) -> None:
        bounds.check_store_url(url)
        self._open_engine = OpenEngine(
            url, queues=declared_queues(queues), schedules=declared_schedules(schedules), is_client=True
        )

    @overload
    def start(
        self, workflow: Startable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Handle[R]: ...

    @overload
    def start(self, workflow: Startable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]: ...

    @overload
    def start(
        self, workflow: RemoteWorkflow[[Unspecified], Unspecified], /, *args: Any, **kwargs: Any
    ) -> Handle[Any]: ...

    def start(self, workflow: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Starts an execution. When the call returns, the start is durable: the execution will run to its
        end.

        Args:
            workflow: The workflow. Options of the start are options of the workflow:
                `engine.start(checkout.options(workflow_id="order-7"), "order-7")`; see `StartOptions`.
            args: The workflow's arguments by position.
            kwargs: The workflow's arguments by name.

        Returns:
            A handle, whose `result` waits for the end of the execution.

        Raises:
            WorkflowIdConflict: The workflow_id belongs to another workflow, or to other arguments.
            DedupConflict: An unfinished execution of the queue has the `dedup_id`.
            QueueFull: The queue is full.
            NotFound: The queue does not exist.
            EncodeError: An argument cannot be recorded.
            InvalidArgument: The engine cannot start the workflow, an argument is larger than `value_limit`,
                or the caller is the code of a workflow. In that code, call the workflow or use
                `Workflow.start`.
            TypeError: The workflow does not take these arguments.
            EngineClosed: The engine is closed.
            StoreUnavailable: The database was unreachable until the `wait_timeout` had passed.
        """
        open_engine = self._open_engine
        handle: Handle[Any] = Handle(wait_for_call(open_engine.start(workflow, args, kwargs)), open_engine)
        return handle

    @overload
    def start_many(
        self, workflow: RemoteWorkflow[[Unspecified], Unspecified], items: Iterable[tuple[Any, ...]], /
    ) -> builtins.list[Handle[Any]]: ...

    @overload
    def start_many(
        self, workflow: Startable[..., Coroutine[Any, Any, R]], items: Iterable[tuple[Any, ...]], /
    ) -> builtins.list[Handle[R]]: ...

    @overload
    def start_many(
        self, workflow: Startable[..., R], items: Iterable[tuple[Any, ...]], /
    ) -> builtins.list[Handle[R]]: ...

    def start_many(self, workflow: Any, items: Any, /) -> Any:
        """Starts an execution for each tuple of arguments, in one call. Many of the starts share a flush, as
        the starts of concurrent callers do. When the call returns, all starts are durable. If the call
        raises, some starts may be durable.

        Args:
            workflow: The workflow. Its options apply to all executions:
                `engine.start_many(send.options(queue="emails"), [("ann",), ("bob",)])`. The options
                `workflow_id`, `dedup_id` and `debounce` are not allowed.
            items: The tuples of arguments by position, one tuple for each execution.

        Returns:
            The handles, in the order of the items.

        Raises:
            InvalidArgument: An item is no tuple, or an option is not allowed here.
            Error: See `Client.start`.
        """
        open_engine = self._open_engine
        handles = wait_for_call(open_engine.start_many(workflow, items))
        return [Handle(handle, open_engine) for handle in handles]

    @overload
    def submit_batch(
        self,
        workflow: RemoteWorkflow[[Unspecified], Unspecified],
        inputs: Iterable[tuple[Any, ...]],
        /,
        **options: Unpack[BatchOptions],
    ) -> BatchHandle[Any]: ...

    @overload
    def submit_batch(
        self,
        workflow: Startable[..., Coroutine[Any, Any, R]],
        inputs: Iterable[tuple[Any, ...]],
        /,
        **options: Unpack[BatchOptions],
    ) -> BatchHandle[R]: ...

    @overload
    def submit_batch(
        self,
        workflow: Startable[..., R],
        inputs: Iterable[tuple[Any, ...]],
        /,
        **options: Unpack[BatchOptions],
    ) -> BatchHandle[R]: ...

    def submit_batch(self, workflow: Any, inputs: Any, /, **options: Unpack[BatchOptions]) -> Any:
        """Submits an item for each tuple of arguments as one batch. Each item is an execution of the
        workflow. Up to 1,000 items share one row and one claim, so a batch costs much less than as many
        starts. When the call returns, all items are durable and will run to their ends.

        The inputs are read in portions while earlier items are written, so memory stays bounded, and a
        generator may give millions of inputs. If the call raises in the middle, the batch stays open. It
        contains the items before the failure, except up to the last 999. A second submission with the same
        `batch_id` continues it.

        Args:
            workflow: The workflow. Its options `run_timeout`, `queue`, `key`, `priority` and `attributes`
                apply to the batch; other options are not allowed.
            inputs: The tuples of arguments by position, one tuple for each item: any iterable. A batch has
                at most 2,147,483,647 items.
            options: The options of the batch, which take precedence over those of the workflow; none by
                default. See `BatchOptions`.

        Returns:
            A handle to the batch.

        Raises:
            WorkflowIdConflict: The batch_id belongs to an execution, to a cancelled batch, or to a batch of
                another workflow or with other inputs. The message names the first item that differs.
            EncodeError: An argument cannot be recorded. The message names the item.
            InvalidArgument: An item is no tuple, the workflow has an option that is not allowed here, or an
                argument is larger than `value_limit`.
            TypeError: The workflow does not take the arguments of an item, which the message names; the
                inputs are not iterable; or `options` has a name that is no option of batches.
            Exception: The exception that the iterable has raised.
            Error: See `Client.start`.
        """
        open_engine = self._open_engine
        handle: BatchHandle[Any] = BatchHandle(
            submit_batch(open_engine, workflow, inputs, options), open_engine
        )
        return handle

    @overload
    def get_batch(self, batch_id: str) -> BatchHandle[Any]: ...

    @overload
    def get_batch(
        self, batch_id: str, workflow: RemoteWorkflow[[Unspecified], Unspecified]
    ) -> BatchHandle[Any]: ...

    @overload
    def get_batch(
        self, batch_id: str, workflow: Startable[..., Coroutine[Any, Any, R]]
    ) -> BatchHandle[R]: ...

    @overload
    def get_batch(self, batch_id: str, workflow: Startable[..., R]) -> BatchHandle[R]: ...

    def get_batch(self, batch_id: str, workflow: Any = None) -> Any:
        """Returns a handle to the batch with this id, which any process may have submitted.

        Args:
            batch_id: The id of the batch, given or generated.
            workflow: The workflow of the items, by which type checkers know the type of their outputs; None
                by default.

        Raises:
            NotFound: There is no such batch.
            InvalidArgument: The id belongs to an execution that is no batch, or the batch is of another
                workflow.
        """
        open_engine = self._open_engine
        handle: BatchHandle[Any] = BatchHandle(open_engine.get_batch(batch_id, workflow).wait(), open_engine)
        return handle

    @overload
    def run(
        self, workflow: Startable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...

    @overload
    def run(self, workflow: Startable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    def run(
        self, workflow: RemoteWorkflow[[Unspecified], Unspecified], /, *args: Any, **kwargs: Any
    ) -> Any: ...

    def run(self, workflow: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Starts an execution and waits for its output, which is then durable. On an engine this is cheaper
        than `start` and `result`. If the execution can begin at once, its code runs in this thread, and one
        flush records the start and the end.

        Args:
            workflow: The workflow; see `Client.start`.
            args: The workflow's arguments by position.
            kwargs: The workflow's arguments by name.

        Returns:
            The output of the workflow.

        Raises:
            EncodeError: An argument, or the output, cannot be recorded.
            WorkflowCancelled: The execution was cancelled, or its time limit was reached.
            WorkflowParked: The execution is parked, and continues when it is resumed.
            Error: See `Client.start`.
            Exception: The exception that the workflow has raised; `WorkflowFailed` if the workflow failed
                without an exception of Python.
        """
        return self._open_engine.run(workflow, args, kwargs)

    @overload
    def get(self, workflow_id: str) -> Handle[Any]: ...

    @overload
    def get(self, workflow_id: str, workflow: RemoteWorkflow[[Unspecified], Unspecified]) -> Handle[Any]: ...

    @overload
    def get(self, workflow_id: str, workflow: Startable[..., Coroutine[Any, Any, R]]) -> Handle[R]: ...

    @overload
    def get(self, workflow_id: str, workflow: Startable[..., R]) -> Handle[R]: ...

    def get(self, workflow_id: str, workflow: Any = None) -> Any:
        """Returns a handle to the execution with this workflow_id, which any process may have started.

        Args:
            workflow_id: The execution's workflow_id, given or generated.
            workflow: The execution's workflow, by which type checkers know the type of the output; None by
                default.

        Raises:
            NotFound: There is no such execution.
            InvalidArgument: The execution is of another workflow.
        """
        open_engine = self._open_engine
        handle: Handle[Any] = Handle(open_engine.get_handle(workflow_id, workflow).wait(), open_engine)
        return handle

    @overload
    def results(
        self, handles: Iterable[Handle[R]], *, return_exceptions: Literal[False] = False
    ) -> builtins.list[R]: ...

    @overload
    def results(
        self, handles: Iterable[Handle[R]], *, return_exceptions: bool
    ) -> builtins.list[R | BaseException]: ...

    def results(self, handles: Iterable[Handle[Any]], *, return_exceptions: bool = False) -> Any:
        """Waits for the ends of many executions in one wait.

        Args:
            handles: The executions.
            return_exceptions: Whether the list contains exceptions in place of missing outputs; False by
                default: an exception is raised.

        Returns:
            The outputs, in the order of the handles.

        Raises:
            Exception: The exception of the first handle, in the order of `handles`, whose execution failed,
                was cancelled or is parked. It is raised after the ends of all executions. See
                `Handle.result`.
        """
        return self._open_engine.results(handles, return_exceptions).wait()

    def list(
        self, *, after: str | None = None, limit: int = 50, **filter: Unpack[Filter]
    ) -> builtins.list[Execution]:
        """Returns executions that match the filter, newest first:
        `engine.list(status="failed", queue="emails")`.

        A child that its parent calls, also by `map` or `gather`, counts as exactly as old as the parent. Such
        children stand beside the parent, in no defined order among themselves. A child of `Workflow.start` or
        `Workflow.start_detached` counts as exactly as old as the last outcome that the parent received before
        the start.

        Args:
            after: The workflow_id of the last execution on the previous page; None, the default, for the
                first page.
            limit: The maximum number of executions, at least 1; 50 by default.
            filter: The conditions; all executions by default. See `Filter`.

        Raises:
            InvalidArgument: A condition has a value that it cannot have, or `limit` is less than 1.
        """
        return self._open_engine.list(filter, after, limit).wait()

    def count(self, **filter: Unpack[Filter]) -> int:
        """Returns the number of executions that match the filter.

        Args:
            filter: The conditions; all executions by default. See `Filter`.

        Raises:
            InvalidArgument: A condition has a value that it cannot have.
        """
        return self._open_engine.count(filter).wait()

    def show(self, workflow_id: str) -> Record:
        """Returns everything that is recorded of an execution.

        Args:
            workflow_id: The workflow_id of the execution.

        Raises:
            NotFound: There is no such execution.
        """
        return self._open_engine.show(workflow_id).wait()

    def get_many(self, workflow_ids: Iterable[str]) -> builtins.list[ExecutionOutcome | None]:
        """Finds many executions by their workflow_ids, with their outcomes so far. Thousands of ids take
        a few queries.

        Args:
            workflow_ids: The ids of executions, batches or items of batches, such as `photos#7`.

        Returns:
            The executions in the order of the ids; None for each that does not exist.

        Raises:
            InvalidArgument: An id is no text, or contains a NUL character.
        """
        return self._open_engine.get_many(workflow_ids).wait()

    def find(
        self, attribute: str, values: Iterable[str], *, limit: int = 50
    ) -> builtins.list[builtins.list[ExecutionOutcome]]:
        """Finds executions by the values of an attribute, with their outcomes so far. Thousands of values
        take a few queries. `list(attributes=…)` returns all executions with one value, page by page.

        Args:
            attribute: The name of the attribute.
            values: Its values.
            limit: The maximum number of executions for each value, at least 1; 50 by default.

        Returns:
            A list for each value, in the order of the values: the executions with this value, the newest
            first.

        Raises:
            InvalidArgument: No attribute can have such a name or such a value, or `limit` is less than 1.
        """
        return self._open_engine.find(attribute, values, limit).wait()

    def cancel(self, workflow_id: str) -> bool:
        """Requests that an execution be cancelled. See `Handle.cancel`.

        Args:
            workflow_id: The workflow_id of the execution.

        Returns:
            False if the execution had ended before.

        Raises:
            NotFound: There is no such execution.
        """
        forbid_in_workflow("engine.cancel")
        return self.get(workflow_id).cancel()

    def pause(self, workflow_id: str) -> bool:
        """Requests that an execution be parked. See `Handle.pause`.

        Args:
            workflow_id: The workflow_id of the execution.

        Returns:
            False if the execution is scheduled, or had ended before.

        Raises:
            NotFound: There is no such execution.
        """
        forbid_in_workflow("engine.pause")
        return self.get(workflow_id).pause()

    def resume(self, workflow_id: str) -> bool:
        """Requests that an execution continue from its record. See `Handle.resume`.

        Args:
            workflow_id: The workflow_id of the execution.

        Returns:
            False if the execution is neither parked nor failed nor cancelled, and no pause is pending.

        Raises:
            NotFound: There is no such execution.
        """
        forbid_in_workflow("engine.resume")
        return self.get(workflow_id).resume()

    def cancel_all(self, **filter: Unpack[Filter]) -> BulkResult:
        """Cancels all executions that match the filter and have not ended, in the order of `list`. See
        `cancel`.

        Args:
            filter: The conditions, at least one; see `Filter`.

        Returns:
            The number of executions that are cancelled now, the number that their workers will cancel, and
            the number that had ended.

        Raises:
            InvalidArgument: There is no condition, or a condition has a value that it cannot have.
        """
        return self._open_engine.cancel_all(filter).wait()

    def pause_all(self, **filter: Unpack[Filter]) -> BulkResult:
        """Parks all executions that match the filter and can be paused, in the order of `list`:
        `engine.pause_all(workflow="etl")`. See `pause`.

        Args:
            filter: The conditions, at least one; see `Filter`.

        Returns:
            The number of executions that are parked now, the number that their workers will park, and the
            number whose status does not allow a pause.

        Raises:
            InvalidArgument: There is no condition, or a condition has a value that it cannot have.
        """
        return self._open_engine.pause_all(filter).wait()

    def resume_all(self, **filter: Unpack[Filter]) -> BulkResult:
        """Continues all executions that match the filter and are parked, failed or cancelled, in the order of
        `list`: `engine.resume_all(queue="emails", status="failed")`. See `resume`.

        Args:
            filter: The conditions, `status` or `is_parked` among them; see `Filter`.

        Returns:
            The number of executions that continue now, the number that their workers will continue, and the
            number whose status does not allow a resume.

        Raises:
            InvalidArgument: Neither `status` nor `is_parked` is given, or a condition has a value that it
                cannot have.
        """
        return self._open_engine.resume_all(filter).wait()

    def workers(self) -> WorkerOverview:
        """Returns the workers of the database, and the executions that none of them can run. The command
        `stepfast worker list` shows the same.

        Raises:
            InvalidArgument: The database's user lacks a permission.
            StoreUnavailable: The database is unreachable.
        """
        return self._open_engine.workers().wait()

    def dead_letters(self, *, limit: int = 50) -> builtins.list[DeadLetter]:
        """Returns dead letters, the latest first: starts of outboxes that could not become executions. The
        command `stepfast queue dead-letters` shows the same.

        Args:
            limit: The maximum number of dead letters, at least 1; 50 by default.

        Raises:
            InvalidArgument: `limit` is less than 1, or the database's user lacks a permission.
            StoreUnavailable: The database is unreachable.
        """
        return self._open_engine.dead_letters(limit).wait()

    def queues(self) -> builtins.list[QueueInfo]:
        """Returns the stored queues, sorted by name."""
        return self._open_engine.queues().wait()

    def set_queue(self, queue: Queue) -> QueueInfo:
        """Creates a queue, or changes the limits of an existing one. The new limits apply to all processes
        from then on. Executions that already run continue, even if they exceed the new limits.

        Args:
            queue: The queue. Its `on_conflict` has no effect here: the stored limits are replaced.

        Returns:
            The queue as it is stored now. A paused queue stays paused.

        Raises:
            InvalidArgument: The value is no `Queue`.
            EngineClosed: The engine is closed.
        """
        return self._open_engine.set_queue(queue).wait()

    def pause_queue(self, queue: str | Queue) -> QueueInfo:
        """Pauses a queue: its waiting executions, and further ones, do not begin until the queue is resumed.
        Executions that run continue.

        Args:
            queue: The queue, as its name or as a `Queue`.

        Returns:
            The queue as it is stored now.

        Raises:
            NotFound: There is no such queue.
            InvalidArgument: The value cannot be the name of a queue, or is `default`, which cannot be paused.
        """
        return self._open_engine.pause_queue(queue).wait()

    def resume_queue(self, queue: str | Queue) -> QueueInfo:
        """Resumes a paused queue: its executions may begin again.

        Args:
            queue: The queue, as its name or as a `Queue`.

        Returns:
            The queue as it is stored now.

        Raises:
            NotFound: There is no such queue.
            InvalidArgument: The value cannot be the name of a queue, or is `default`, which is never paused.
        """
        return self._open_engine.resume_queue(queue).wait()

    def close(self, grace: Duration = 10.0) -> None:
        """Closes the engine or client: requeues the executions that run here, and flushes the staged Writes.
        Does not wait for executions to end. Later calls raise `EngineClosed`. A second call does nothing.

        Args:
            grace: The longest time to wait for an unreachable database, and for code in threads, which cannot
                be interrupted; as seconds or as a `timedelta`. 10 s by default. Outcomes of code that ends
                later are dropped.
        """
        seconds = bounds.checked_grace(grace)
        self._open_engine.end(seconds, seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


__all__ = ["Client"]
