"""`Engine`: runs workflows for programs without an event loop."""

from __future__ import annotations

import builtins
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from stepfast._engine.base import Opened
from stepfast._engine.dead_letters import DeadLetter, dead_letter_of
from stepfast._engine.filter import Answers, Filter
from stepfast._engine.handle import Handle, outcomes
from stepfast._engine.options import Options, check_names
from stepfast._engine.records import Execution, Record, execution_of, record_of
from stepfast._engine.signals import calling
from stepfast._engine.workers import Survey, survey_of
from stepfast._options.queue import (
    OnDuplicate,
    OnFull,
    Queue,
    QueueInfo,
    declared,
    info_of,
    name_of,
    served,
    told,
)
from stepfast._options.start_options import StartOptions, order_of
from stepfast._runtime import process_hooks
from stepfast._runtime.branch import DONE, PENDING, RUN_BODY, current_code, forbid_in_workflow
from stepfast._runtime.exceptions_here import execution_entry
from stepfast._runtime.failures import workflow_failure
from stepfast._runtime.waiting import error_of, wait_for_call
from stepfast._validation import bounds
from stepfast._workflow.workflow import BoundWorkflow, Workflow
from stepfast.errors import EngineClosed, Error

P = ParamSpec("P")
R = TypeVar("R")


class Engine:
    """Runs workflows on a store. Safe to be used by any number of threads.

    Args:
        url: The store: `sqlite://shop.db`, `postgres://…`, `memory:`.
        max_running: Executions that run at a time in this process; what is started beyond waits.
        suspend_after: An execution that waits longer than so many seconds gives up its memory, and goes on
            from its record when the wait is over.
        value_limit: Largest input, step value or output, in encoded bytes; by default 256 MiB.
        threads: Sync workflows that run at a time, each on a thread.
        processes: Bodies of steps with `process=True` that run at a time; by default as many as there are
            processors.
        app_version: The version of the program's code. What this engine starts is then run only by workers of
            the same version, and this engine runs only what has this version or none. Unset by default, and
            then everything matches: a deploy continues what the code before it began.
        max_recoveries: How often an execution whose worker died several times in a row, without a new
            checkpoint of it, is tried alone before it ends as failed.
        queues: Queues that are stored when the engine opens, for all processes; see `Queue`.
        serve: The queues from which this engine takes executions to run, as names or as `Queue`; all by
            default. What has no queue is in `default`.

    Raises:
        InvalidArgument: The store cannot be opened, or an option is out of its bounds.
        QueueConflict: A queue is stored with other limits, and its `on_conflict` is `refuse`.
        StoreCorrupt: The store is damaged.
        SchemaMismatch: The store has the schema of a newer version of Stepfast.
        StoreUnavailable: The database server is unreachable.
    """

    _options_of: type[Options] = Options

    def __init__(
        self,
        url: str,
        *,
        max_running: int = 10_000,
        suspend_after: float = 5.0,
        value_limit: int = 256 * 1024 * 1024,
        threads: int = 64,
        processes: int | None = None,
        app_version: str | None = None,
        max_recoveries: int = 10,
        queues: Iterable[Queue] = (),
        serve: Iterable[str | Queue] | None = None,
    ) -> None:
        bounds.check_engine_options(
            url, max_running, suspend_after, value_limit, threads, processes, app_version, max_recoveries
        )
        self._opened = Opened(
            url,
            max_running=max_running,
            suspend_after=suspend_after,
            value_limit=value_limit,
            threads=threads,
            processes=processes,
            app_version=app_version,
            max_recoveries=max_recoveries,
            queues=declared(queues),
            serve=served(serve),
        )

    @overload
    def start(
        self, workflow: Workflow[P, R] | BoundWorkflow[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Handle[R]: ...

    @overload
    def start(
        self,
        workflow: Workflow[..., R] | BoundWorkflow[..., R],
        /,
        *args: Any,
        workflow_id: str | None,
        **kwargs: Any,
    ) -> Handle[R]: ...

    def start(  # type: ignore[misc] # a workflow with a workflow_id of its own: see `options`
        self, workflow: Any, /, *args: Any, workflow_id: str | None = None, **kwargs: Any
    ) -> Any:
        """Starts an execution. When this returns, it is durable that it will run to its end.

        Args:
            workflow: The workflow.
            args: Its arguments by position.
            workflow_id: The execution's id, at most 1024 bytes. Starting the same workflow with the same
                arguments and id again is the same execution. A time-ordered id is minted if there is none.
                For a workflow with an argument of that name there is `options`.
            kwargs: Its arguments by name.

        Returns:
            A handle, whose `result` waits for the end.

        Raises:
            WorkflowIdConflict: The workflow_id is taken by another workflow, or by other arguments.
            EncodeError: An argument cannot be recorded.
            InvalidArgument: The engine does not know the workflow, an argument is larger than `value_limit`, or
                this is the code of a workflow: call the workflow there, or start it by `workflow.start(...)`.
            EngineClosed: The engine is closed.
            StoreUnavailable: The database was unreachable for the `patience` of `options`.
        """
        order = None if workflow_id is None else order_of(workflow_id=workflow_id)
        return self._start(workflow, args, kwargs, order)

    def start_many(
        self, workflow: Workflow[..., R] | BoundWorkflow[..., R], items: Iterable[tuple[Any, ...]], /
    ) -> builtins.list[Handle[R]]:
        """Starts an execution for each tuple of arguments, in one call: many share a flush, as they do when
        many callers start one each. When this returns, all of them are durable; if it raises, some may be.
        With options, as into a queue: `engine.options(queue="emails").start_many(send, [("ann",)])`.

        Args:
            workflow: The workflow.
            items: Its arguments by position, a tuple for each execution.

        Returns:
            Their handles, in the order of the items.

        Raises:
            EncodeError: As of `start`.
            InvalidArgument: As of `start`; or an item is no tuple, or an option is for one execution only.
            Unavailable: As of `start`.
        """
        return self._start_many(workflow, items, None)

    def _start_many(
        self, workflow: Callable[..., Any], items: Iterable[tuple[Any, ...]], order: StartOptions | None
    ) -> builtins.list[Handle[Any]]:
        opened = self._opened
        return [Handle(it, opened) for it in wait_for_call(opened.start_many(workflow, items, order))]

    def enqueue(
        self,
        queue: str | Queue,
        workflow: Workflow[P, R] | BoundWorkflow[P, R],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Handle[R]:
        """Puts an execution into a queue: short for `engine.options(queue=queue).start(workflow, …)`. When
        this returns, it is durable that it will run to its end, once its queue and a worker have a place for
        it.

        Args:
            queue: The queue, by its name or as a `Queue`. It must have been declared, here or anywhere.
            workflow: The workflow.
            args: Its arguments by position.
            kwargs: Its arguments by name, all of them: a workflow_id, a key or a priority stand in `options`.

        Returns:
            A handle, whose `result` waits for the end.

        Raises:
            NotFound: There is no such queue.
            EncodeError: As of `start`.
            InvalidArgument: As of `start`; or it cannot be the name of a queue.
            Unavailable: As of `start`.
        """
        check_names(workflow, kwargs)
        handle: Handle[R] = self._start(workflow, args, kwargs, order_of(queue=name_of(queue)))
        return handle

    @overload
    def run(
        self, workflow: Workflow[P, R] | BoundWorkflow[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...

    @overload
    def run(
        self,
        workflow: Workflow[..., R] | BoundWorkflow[..., R],
        /,
        *args: Any,
        workflow_id: str | None,
        **kwargs: Any,
    ) -> R: ...

    def run(  # type: ignore[misc] # see `start`
        self, workflow: Any, /, *args: Any, workflow_id: str | None = None, **kwargs: Any
    ) -> Any:
        """Starts an execution and waits for its output, which is then durable. Cheaper than `start` and
        `result`: one flush for both. Its code runs in this thread, if it can begin at once. See `start` for
        the arguments.

        Returns:
            The output of the workflow.

        Raises:
            WorkflowIdConflict: The workflow_id is taken by another workflow, or by other arguments.
            EncodeError: An argument, or the output, cannot be recorded.
            InvalidArgument: As of `start`.
            Unavailable: As of `start`.
            WorkflowCancelled: The execution was cancelled, or its time was up.
            WorkflowParked: It is parked: it goes on when somebody resumes it.
            Exception: What the workflow has raised; `WorkflowFailed` where no code of Python has.
        """
        order = None if workflow_id is None else order_of(workflow_id=workflow_id)
        return self._run(workflow, args, kwargs, order)

    def options(
        self,
        *,
        workflow_id: str | None = None,
        timeout: float | None = None,
        run_timeout: float | None = None,
        patience: float | None = None,
        queue: str | Queue | None = None,
        key: str | None = None,
        priority: int | None = None,
        dedup_id: str | None = None,
        on_duplicate: OnDuplicate = "reject",
        on_full: OnFull = "reject",
        delay: float | None = None,
        start_at: datetime | None = None,
        debounce: str | None = None,
        max_delay: float | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> Options:
        """The engine, to start executions with options: `engine.options(timeout=60).start(checkout, order)`.

        Args:
            workflow_id: The execution's id, as of `start`. By default one is minted.
            timeout: After so many seconds the execution is cancelled unless it has ended; never by default.
            run_timeout: The same, counted from when it begins: time in a queue does not count, waits and
                recoveries do.
            patience: So long a call waits for a database that does not answer, in seconds, before it raises
                `StoreUnavailable`; for ever by default. The start may happen nevertheless: repeating it with the
                same workflow_id is safe.
            queue: The queue that it waits in until a worker takes it, by its name or as a `Queue`; it must
                have been declared, here or anywhere. By default none: then it runs here at once if it can.
            key: Its key within the queue, at most 1024 bytes: keys take turns, so that none waits behind the
                backlog of another, and may have limits of their own. None by default.
            priority: Smaller comes first among those of its queue and key; 0 by default.
            dedup_id: There is one at most in its queue that has this and has not ended, whatever its key is;
                at most 1024 bytes. None by default.
            on_duplicate: What this comes to if there is one. By default, "reject", `DedupConflict` is raised; with
                "return_existing" it is a handle to that one, or its output, if that is of the same workflow.
            on_full: What this comes to if as many wait in the queue as may: with "reject", as by default,
                `QueueFull` is raised; with "wait" it waits for room, for as long as `patience` allows.
            delay: It begins not before so many seconds after it was accepted; in a queue, it stands there
                from then on. At once by default.
            start_at: The same as a time: a datetime with a time zone, by the clock of the database.
            debounce: Starts of this workflow in this queue that have this in common are one execution, until
                that may begin: each lets it begin `delay` seconds later than it comes itself, and the
                arguments of the last one count, as do its key, priority and run_timeout. Each comes to a
                handle to that execution. At most 1024 bytes; arguments of at most 64 KiB. None by default.
            max_delay: However often it is put off, what is debounced may begin so many seconds after the
                first start. No limit by default.
            attributes: Names with values that it is found by, for good: `engine.list(attributes=…)` filters
                by them. What it starts has its own. At most 64, with names of at most 128 bytes and values of
                at most 1,024. None by default.

        Returns:
            What has the same `start` and `run` as the engine.

        Raises:
            InvalidArgument: An option is out of its bounds.
        """
        return self._options_of(
            self._start,
            self._run,
            self._start_many,
            order_of(
                workflow_id=workflow_id,
                timeout=timeout,
                run_timeout=run_timeout,
                patience=patience,
                queue=queue,
                key=key,
                priority=priority,
                dedup_id=dedup_id,
                on_duplicate=on_duplicate,
                on_full=on_full,
                delay=delay,
                start_at=start_at,
                debounce=debounce,
                max_delay=max_delay,
                attributes=attributes,
            ),
        )

    def _start(
        self,
        workflow: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        order: StartOptions | None,
    ) -> Handle[Any]:
        return Handle(wait_for_call(self._opened.start(workflow, args, kwargs, order)), self._opened)

    @execution_entry
    def _run(
        self,
        workflow: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        order: StartOptions | None,
    ) -> Any:
        opened = self._opened
        number, args = opened.resolved("run", workflow, args)
        call = opened.run(number, args, kwargs, order)
        turn = call.wait()
        error: BaseException | None = None
        while turn == RUN_BODY:
            begun = call.take_new_run()
            if begun is None:
                # its input cannot be read: it is parked
                turn = call.wait()
                continue
            branch, (args, kwargs) = begun
            opened.begun(call, branch)
            function: Any = opened.workflows[number].function
            try:
                turn = call.code_returned(branch.call_code(function, args, kwargs))
            except (KeyboardInterrupt, SystemExit):
                # the program is told to end: the execution goes on from the record
                branch.defer()
                # the traceback keeps it, and nobody polls it any more
                call.close()
                raise
            except BaseException as raised:
                # of code that unwinds nothing counts
                error = None if branch.is_closing else raised
                turn = (
                    call.code_unwound()
                    if error is None
                    else call.code_failed(workflow_failure(branch, raised))
                )
            finally:
                opened.inline.pop(call, None)
            if turn == PENDING:
                turn = call.wait()
        try:
            if turn != DONE:
                raise error_of(call, turn, error)
            return call.take_value()
        finally:
            # its traceback has this frame
            del error

    def get(self, workflow_id: str) -> Handle[Any]:
        """A handle to the execution with this workflow_id, whoever has started it.

        Args:
            workflow_id: Given when it was started, or minted then.

        Raises:
            NotFound: There is none.
        """
        bounds.check_storable_text("workflow_id", workflow_id)
        return Handle(wait_for_call(self._opened.asked("get").get_handle(workflow_id, None)), self._opened)

    @overload
    def results(
        self, handles: Iterable[Handle[R]], *, return_exceptions: Literal[False] = False
    ) -> builtins.list[R]: ...

    @overload
    def results(
        self, handles: Iterable[Handle[R]], *, return_exceptions: bool
    ) -> builtins.list[R | BaseException]: ...

    def results(self, handles: Iterable[Handle[Any]], *, return_exceptions: bool = False) -> Any:
        """Waits for the ends of many executions at once: one wait, however many there are.

        Args:
            handles: The executions.
            return_exceptions: Exceptions come in the places of outputs, and are not raised.

        Returns:
            The outputs, in the order of the handles.

        Raises:
            Exception: What the first execution in this order that has not completed has raised, when all have
                ended. See `Handle.result`.
        """
        return outcomes(wait_for_call(self._opened.results(handles)), return_exceptions)

    def show(self, workflow_id: str) -> Record:
        """Everything recorded of an execution.

        Args:
            workflow_id: Of the execution.

        Raises:
            NotFound: There is no such execution.
        """
        bounds.check_storable_text("workflow_id", workflow_id)
        return record_of(wait_for_call(self._opened.asked("show").show(workflow_id, None)))

    def survey(self) -> Survey:
        """Who works on the database, and what waits for a worker that is not there. The program's `stepfast
        worker list` shows the same.

        Raises:
            InvalidArgument: The user of the database may not read that.
            StoreUnavailable: The database is unreachable.
        """
        return survey_of(wait_for_call(self._opened.asked("survey").workers(None)))

    def dead_letters(self, *, limit: int = 50) -> builtins.list[DeadLetter]:
        """Starts of outboxes that could not become executions, the latest first. The program's
        `stepfast queue dead-letters` shows the same.

        Args:
            limit: At most so many, at least 1.

        Raises:
            InvalidArgument: `limit` is less than 1; or the user of the database may not read that.
            StoreUnavailable: The database is unreachable.
        """
        bounds.check_count("limit", limit, 1)
        letters = wait_for_call(self._opened.asked("dead_letters").dead_letters(limit, None))
        return [dead_letter_of(row) for row in letters]

    def queues(self) -> builtins.list[QueueInfo]:
        """The queues that there are, by name."""
        return [info_of(row) for row in wait_for_call(self._opened.asked("queues").queues(None))]

    def set_queue(self, queue: Queue) -> QueueInfo:
        """Creates a queue, or gives one that is there these limits. They hold for all processes from when
        this returns on; what runs already beyond them runs on.

        Args:
            queue: The queue. Its `on_conflict` is of no use here: what is stored is replaced.

        Returns:
            The queue as it is now: what is paused stays so.

        Raises:
            InvalidArgument: It is no `Queue`.
            EngineClosed: The engine is closed.
        """
        return info_of(wait_for_call(self._opened.asked("set_queue").set_queue(told(queue), None)))

    def pause_queue(self, queue: str | Queue) -> QueueInfo:
        """Stops a queue: what waits in it stays there, and what is put into it, until it is resumed. What
        runs runs on.

        Args:
            queue: The queue, by its name or as a `Queue`.

        Returns:
            The queue as it is now.

        Raises:
            NotFound: There is no such queue.
            InvalidArgument: It cannot be the name of a queue; or it is `default`, which cannot be paused.
        """
        return info_of(
            wait_for_call(self._opened.asked("pause_queue").set_paused(name_of(queue), True, None))
        )

    def resume_queue(self, queue: str | Queue) -> QueueInfo:
        """Lets a queue that was paused go on.

        Args:
            queue: The queue, by its name or as a `Queue`.

        Returns:
            The queue as it is now.

        Raises:
            NotFound: There is no such queue.
            InvalidArgument: It cannot be the name of a queue; or it is `default`, which is never paused.
        """
        return info_of(
            wait_for_call(self._opened.asked("resume_queue").set_paused(name_of(queue), False, None))
        )

    def cancel(self, workflow_id: str) -> bool:
        """Asks that an execution be cancelled. See `Handle.cancel`.

        Args:
            workflow_id: Of the execution.

        Returns:
            False if it had ended before.

        Raises:
            NotFound: There is no such execution.
        """
        forbid_in_workflow("engine.cancel")
        return self.get(workflow_id).cancel()

    def resume(self, workflow_id: str) -> bool:
        """Asks that an execution go on from what is recorded. See `Handle.resume`.

        Args:
            workflow_id: Of the execution.

        Returns:
            False if it is neither parked nor failed nor cancelled.

        Raises:
            NotFound: There is no such execution.
        """
        forbid_in_workflow("engine.resume")
        return self.get(workflow_id).resume()

    def cancel_all(self, **filter: Unpack[Filter]) -> Answers:
        """Cancels all executions that match and have not ended, in the order of `list`. See `cancel`.

        Args:
            filter: Which ones, one condition at least: see `Filter`.

        Returns:
            How many are cancelled, will be by the engines that run them, or had ended.

        Raises:
            InvalidArgument: There is no condition, or a value is none that it can have.
        """
        return Answers(*wait_for_call(self._opened.act_on_all(filter, is_cancel=True)))

    def resume_all(self, **filter: Unpack[Filter]) -> Answers:
        """Continues all executions that match, in the order of `list`: those that have failed, with
        `status="failed"`, those that were cancelled, or those that are parked. See `resume`. So what has
        failed of a queue goes on with `engine.resume_all(queue="emails", status="failed")`.

        Args:
            filter: Which ones, `status` or `is_parked` among the conditions: see `Filter`.

        Returns:
            How many go on, and how many were in no state for that.

        Raises:
            InvalidArgument: It is not said what is to be continued, or a value is none that it can have.
        """
        return Answers(*wait_for_call(self._opened.act_on_all(filter, is_cancel=False)))

    def count(self, **filter: Unpack[Filter]) -> int:
        """How many executions match.

        Args:
            filter: Which ones; all by default. See `Filter`.

        Raises:
            InvalidArgument: A value is none that it can have, as a status that there is not.
        """
        counted: int = wait_for_call(self._opened.list(filter, None, 0))
        return counted

    def list(
        self, *, after: str | None = None, limit: int = 50, **filter: Unpack[Filter]
    ) -> builtins.list[Execution]:
        """Executions that match, newest first: `engine.list(status="failed", queue="emails")`.

        A child that its workflow calls, also by `map` or `gather`, is as old as its parent here, whenever the
        call comes. Called children stand beside the parent, in no order among themselves. A child of
        `Workflow.start` or `Workflow.start_detached` is as old as the last outcome that its workflow got
        before.

        Args:
            after: For the next page: the workflow_id of the last one on this page.
            limit: At most so many, at least 1.
            filter: Which ones; all by default. See `Filter`.

        Raises:
            InvalidArgument: A value is none that it can have, as a status that there is not, or `limit` is
                less than 1.
        """
        bounds.check_count("limit", limit, 1)
        if after is not None:
            bounds.check_storable_text("after", after)
        return [execution_of(row) for row in wait_for_call(self._opened.list(filter, after, limit))]

    def close(self, grace: float = 10.0) -> None:
        """Ends the engine: what runs is handed back, what is staged is flushed. Does not wait for executions
        to end. What is asked of it afterwards raises `EngineClosed`. Closing again does nothing.

        Args:
            grace: Longest to wait for a database that does not answer, and for bodies in threads, which
                cannot be stopped, in seconds. What they come to is dropped.
        """
        grace = bounds.checked_grace(grace)
        self._opened.end(grace, grace)

    def drain(self, grace: float = 30.0) -> None:
        """Ends the engine as a deploy should: takes nothing new to run, lets what runs here come to its end,
        and closes when nothing runs any more, or the grace is over: what runs then is handed back, and other
        workers take over at once. What is started here meanwhile is accepted, and waits for another worker.

        Args:
            grace: Longest to wait for what runs, in seconds. A body in a thread cannot be stopped: it goes on
                beyond the grace, nobody waits for it, and what it comes to is dropped. A database that does
                not answer is waited for another 10 s.
        """
        grace = bounds.checked_grace(grace)
        over = time.monotonic() + grace
        wait_for_call(self._opened.native.drain(grace, None))
        self._opened.end(process_hooks.CLOSE_GRACE, max(0.0, over - time.monotonic()))

    def work(self, grace: float = 30.0) -> None:
        """Works until the program is told to end, by SIGTERM or by SIGINT (Ctrl-C), then drains. Told a
        second time, it hands back at once what still runs. To be called in the main thread; from then on
        these signals do not end the program by themselves, until it returns.

        Args:
            grace: Longest to wait for what runs, in seconds; see `drain`.

        Raises:
            InvalidArgument: This is not the main thread.
            SchemaMismatch: The engine has ended by itself, because the database has, or is about to get, the
                schema of a newer version.
            StoreCorrupt: The engine has ended by itself, because the database cannot be trusted.
        """
        grace = bounds.checked_grace(grace)
        # its `put` may interrupt its own `get`, as signals do
        told: queue.SimpleQueue[bool | Error] = queue.SimpleQueue()
        ended = self._opened.native.wait_until_ended(None)

        def watch() -> None:
            try:
                wait_for_call(ended)
            except EngineClosed:
                # the program has closed the engine
                pass
            except Error as error:
                told.put(error)

        def drain() -> None:
            try:
                self.drain(grace)
            finally:
                told.put(False)

        with calling(lambda: told.put(True)):
            threading.Thread(target=watch, name="stepfast-ended", daemon=True).start()
            why = told.get()
            if isinstance(why, Error):
                raise why
            draining = threading.Thread(target=drain, name="stepfast-drain")
            draining.start()
            if told.get() is True:
                self._opened.end(process_hooks.CLOSE_GRACE, 0.0)
            draining.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


__all__ = ["Engine"]
