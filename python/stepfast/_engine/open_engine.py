"""An open engine or client: the common core of `Client`, `Engine`, `AsyncClient` and `AsyncEngine`."""

from __future__ import annotations

import builtins
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, cast
from urllib.parse import unquote

from stepfast import _native
from stepfast._engine.handle import AsyncHandle
from stepfast._engine.operations import Operations
from stepfast._engine.scheduling.schedule import Schedule, native_schedule, schedule_parts
from stepfast._options.queue import QueueTuple
from stepfast._processes import ProcessPool
from stepfast._processes.import_guard import forbid_engines
from stepfast._runtime import log, process_hooks
from stepfast._runtime.branch import (
    DONE,
    PENDING,
    RUN_BODY,
    call_in_empty_context,
    current_branch,
    current_code,
)
from stepfast._runtime.code_exceptions import execution_entry
from stepfast._runtime.event_loop.loop import EngineLoop
from stepfast._runtime.failures import workflow_failure
from stepfast._runtime.sqlite_connections import guard_file
from stepfast._runtime.threads.pool import ThreadPool
from stepfast._runtime.waiting import error_of
from stepfast._validation.text import short_repr
from stepfast._workflow.registry import (
    open_engines,
    registered_workflow,
    registered_workflows,
    reject_replaced,
)
from stepfast._workflow.remote import RemoteWorkflow
from stepfast._workflow.start_target import no_workflow_error, start_target
from stepfast._workflow.workflow import Workflow
from stepfast.errors import InvalidArgument

#: The options that `start_many` cannot have. Each text gives the reason and the remedy.
_NOT_FOR_MANY: Final[dict[str, str]] = dict.fromkeys(
    ("workflow_id", "dedup_id", "debounce"),
    "starts many executions, of which only one can have it: leave it out, or call start for each",
)


class OpenEngine(Operations):
    """An open engine or client: the native engine, the numbers of its workflows, and the event loop and the
    threads on which their code runs.

    Args:
        url: The URL of the store.
        loop: The event loop on which async workflows run, and on which calls are awaited; None for a sync
            engine or client.
        queues: The declared queues, each with its `on_conflict`.
        schedules: The declared schedules.
        is_client: Whether this is a client, which runs no executions. Only engines use the other arguments;
            see `Engine`.
    """

    def __init__(
        self,
        url: str,
        loop: EngineLoop | None = None,
        *,
        queues: Iterable[tuple[QueueTuple, str]] = (),
        schedules: Iterable[Schedule] = (),
        is_client: bool = False,
        max_running: int = 1,
        suspend_after: float = 5.0,
        value_limit: int = 1,
        max_threads: int = 1,
        max_processes: int | None = None,
        app_version: str | None = None,
        max_recoveries: int = 10,
        serve_queues: builtins.list[str] | None = None,
    ) -> None:
        forbid_engines()
        self.processes: ProcessPool = ProcessPool(max_processes)
        self._process = os.getpid()
        self.is_closed: bool = False
        self._is_ended = False
        self._closing = threading.RLock()
        self._is_client = is_client
        #: The executions whose code callers run in their own threads.
        self.inline: dict[_native.Call, _native.Branch] = {}
        # a workflow that cannot run here is not registered, so that other workers claim its executions
        self.workflows: builtins.list[Workflow[..., Any]] = [
            workflow
            for workflow in registered_workflows()
            if loop is not None or is_client or not workflow.is_async
        ]
        #: The path of the open SQLite file; None for any other store.
        self.file: str | None = sqlite_file(url)
        self.numbers: dict[Any, int] = {workflow: number for number, workflow in enumerate(self.workflows)}
        self._numbers_by_name = {workflow.name: number for workflow, number in self.numbers.items()}
        #: The functions of async workflows, which a caller's task may run, by the number of the workflow.
        #: None for all other workflows.
        self._task_functions = [self._task_function(workflow) for workflow in self.workflows]
        self._declaring = threading.Lock()
        self.loop = loop
        declared: builtins.list[tuple[_native.Schedule, str]] = [
            (self.native_schedule(schedule), schedule.on_conflict) for schedule in schedules
        ]
        self.port: _native.Port | None = loop.native if loop is not None else None
        #: Returns whether a task of the engine's loop runs in this thread. The function may return False
        #: although a task runs; then callers take a slower way.
        self.is_here: Callable[[], bool] = loop.native.is_in_task if loop is not None else lambda: True
        self.threads: ThreadPool = ThreadPool(self, max_threads)
        log.install()
        if loop is not None:
            # before the engine opens, because executions may begin as soon as it is open
            loop.serve(self)
        if is_client:
            names = [(workflow.name, workflow.signature) for workflow in self.workflows]
            self.native: _native.Engine = _native.Engine.open_client(url, names, list(queues), declared)
        else:
            definitions = [
                (
                    workflow.name,
                    not workflow.durable_reads,
                    self._port_of(workflow),
                    workflow.signature,
                    workflow.declaration,
                )
                for workflow in self.workflows
            ]
            self.native = _native.Engine.open(
                url,
                definitions,
                max_running,
                max_threads,
                suspend_after,
                value_limit,
                app_version,
                max_recoveries,
                list(queues),
                serve_queues,
                declared,
            )
            self.threads.start()
        process_hooks.end_at_exit(self)
        open_engines.add(self)
        if self.file is not None:
            guard_file(self)

    def _port_of(self, workflow: Workflow[..., Any]) -> _native.Port:
        return self.threads.native if self.loop is None or not workflow.is_async else self.loop.native

    def _task_function(self, workflow: Workflow[..., Any]) -> Callable[..., Any] | None:
        return workflow.function if workflow.is_async and not self._is_client else None

    def known_number(self, workflow: Any) -> int | None:
        """Returns the number of a `Workflow`. Returns None for a workflow that has no number here, and for
        any other value, such as a workflow with options, a method or a `RemoteWorkflow`."""
        try:
            return self.numbers.get(workflow)
        except TypeError:
            # the value has no hash, so it is no workflow
            return None

    def number(self, workflow: Any) -> int:
        """Returns the number of a `Workflow` or a `RemoteWorkflow`.

        Raises:
            InvalidArgument: The value is no workflow, or this engine cannot start it.
        """
        if isinstance(workflow, RemoteWorkflow):
            return self._number_by_name(workflow.name)
        number = self.known_number(workflow)
        if number is not None:
            return number
        if not isinstance(workflow, Workflow):
            raise no_workflow_error(
                workflow, "give a workflow, then its arguments, as in engine.start(checkout, order)"
            )
        defined = cast("Workflow[..., Any]", workflow)
        reject_replaced(defined)
        if self._is_client:
            # the workflow was defined after the client was opened
            number = self.numbers[defined] = self._number_by_name(defined.name)
            return number
        if defined.is_async and self.loop is None:
            raise InvalidArgument(
                f"{short_repr(defined)} is async, and runs on an event loop: use an AsyncEngine; to leave "
                f"the execution to another worker, start RemoteWorkflow({defined.name!r})"
            )
        if registered_workflow(defined.name) is not defined:
            raise InvalidArgument(
                f"{short_repr(defined)} was replaced by another one of this name, which was defined "
                "later: give one of them another name"
            )
        raise InvalidArgument(
            f"{short_repr(defined)} is not known to this engine, because it was defined after the engine was "
            "opened: close the engine, and open it again"
        )

    def _number_by_name(self, name: str) -> int:
        """Returns the number of the workflow with this name. Declares the workflow if it has no number here:
        then only other workers run its executions."""
        with self._declaring:
            number = self._numbers_by_name.get(name)
            if number is None:
                defined = registered_workflow(name)
                number = self.native.declare(name, None if defined is None else defined.signature)
                self._numbers_by_name[name] = number
                self._task_functions.append(None)
            return number

    def native_schedule(self, schedule: Schedule) -> _native.Schedule:
        """Returns a schedule for the native engine.

        Raises:
            InvalidArgument: This engine cannot start the workflow.
            TypeError: The workflow does not take the arguments.
        """
        found = schedule_parts(schedule).workflow
        if isinstance(found, Workflow):
            # a client leaves the executions to other workers
            if self._is_client:
                reject_replaced(found)
            else:
                self.number(found)
        return native_schedule(schedule)

    def redefine(self, workflow: Workflow[..., Any]) -> None:
        """Replaces the code of a workflow that was defined again. Executions that begin from now on run the
        new code."""
        for number, known in enumerate(self.workflows):
            if known.name == workflow.name:
                before = (known.is_async, known.durable_reads)
                if before != (workflow.is_async, workflow.durable_reads):
                    # the native engine received both when it was opened, and cannot change them
                    return
                self.workflows[number] = workflow
                self._task_functions[number] = self._task_function(workflow)
                self.native.redefine(number, workflow.signature)
                self.numbers[workflow] = number

    def _resolve(
        self, workflow: Any, args: tuple[Any, ...]
    ) -> tuple[int, tuple[Any, ...], _native.StartOptions | None]:
        """Returns the number of a workflow, all arguments by position, and the options of the start. An
        instance or a class to which a method is bound is the first argument."""
        found, bound_args, options = start_target(workflow)
        number = self.number(found)
        return number, (*bound_args, *args), None if options is None else options.native

    def start(self, workflow: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _native.Call:
        """Starts an execution. The returned call ends with a native handle when the start is durable."""
        if current_branch() is not None:
            raise called_in_workflow_error("start", workflow)
        number, options = self.known_number(workflow), None
        if number is None:
            number, args, options = self._resolve(workflow, args)
        return self.native.start(number, args, kwargs, None, None, None, options)

    def start_in_task(self, workflow: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _native.Call:
        """Starts an execution. Awaiting the returned call gives an `AsyncHandle`."""
        number, options = self.known_number(workflow), None
        if number is None or type(current_code.get()) is _native.Branch:
            if current_branch() is not None:
                raise called_in_workflow_error("start", workflow)
            number, args, options = self._resolve(workflow, args)
        return self.native.start(number, args, kwargs, self.port, AsyncHandle, self, options)

    def start_many(self, workflow: Any, items: Any) -> _native.Call:
        """Starts an execution for each tuple of arguments. The returned call ends with native handles when
        all starts are durable."""
        if current_branch() is not None:
            raise called_in_workflow_error("start", workflow)
        found, bound_args, options = start_target(workflow)
        number = self.number(found)
        if options is not None:
            options.refuse(_NOT_FOR_MANY, "start_many")
        arguments: builtins.list[tuple[Any, ...]] = []
        for item in items:
            if item.__class__ is not tuple:
                raise InvalidArgument(
                    f"{short_repr(item)} is no tuple of arguments: write "
                    f"start_many({short_repr(workflow)}, [(1,), (2,)])"
                )
            arguments.append((*bound_args, *item))
        native = None if options is None else options.native
        return self.native.start_many(number, arguments, self.port, native)

    @execution_entry
    def run(self, workflow: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Starts an execution and returns its output. If the execution may begin at once, its code runs in
        this thread."""
        if current_branch() is not None:
            raise called_in_workflow_error("run", workflow)
        number, options = self.known_number(workflow), None
        if number is None:
            number, args, options = self._resolve(workflow, args)
        call = self.native.run(number, args, kwargs, options)
        state = call.wait()
        error: BaseException | None = None
        while state == RUN_BODY:
            new_run = call.take_new_run()
            if new_run is None:
                # the engine cannot read the input, and parks the execution
                state = call.wait()
                continue
            branch, arguments = new_run
            self._begin_inline(call, branch)
            function: Any = self.workflows[number].function
            try:
                state = call.code_returned(call_in_empty_context(branch, function, arguments))
            except (KeyboardInterrupt, SystemExit):
                # the program ends: another worker continues the execution from its record
                branch.defer()
                # the traceback keeps the call alive, although no code polls it any more
                call.close()
                raise
            except BaseException as raised:
                # an exception that unwinds a stopped run is not its outcome
                error = None if branch.is_closing else raised
                state = (
                    call.code_unwound()
                    if error is None
                    else call.code_failed(workflow_failure(branch, raised))
                )
            finally:
                self.inline.pop(call, None)
            if state == PENDING:
                state = call.wait()
        try:
            if state != DONE:
                raise error_of(call, state, error)
            return call.take_value()
        finally:
            # the traceback of the error refers to this frame, which would make a reference cycle
            del error

    def run_in_task(self, workflow: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _native.Call:
        """Starts an execution. Awaiting the returned call gives the output. If the execution may begin at
        once, the awaiting task runs its code."""
        number, options = self.known_number(workflow), None
        if number is None or type(current_code.get()) is _native.Branch:
            if current_branch() is not None:
                raise called_in_workflow_error("run", workflow)
            number, args, options = self._resolve(workflow, args)
        function = self._task_functions[number]
        return self.native.run_in_task(number, args, kwargs, self.port, function, self, options)

    def _begin_inline(self, call: _native.Call, branch: _native.Branch) -> None:
        """Registers an execution whose code the calling thread is about to run."""
        branch.host = self
        self.inline[call] = branch
        if self.is_closed:
            self._requeue(call, branch)

    @staticmethod
    def _requeue(call: _native.Call, branch: _native.Branch) -> None:
        branch.requeue()
        call.fail_with_shutdown()

    def end(self, grace: float, thread_timeout: float) -> None:
        """Ends the engine once. Returns when the engine has ended, even if another thread ends it.

        Does nothing in a forked child, because the engine belongs to its parent.

        Args:
            grace: How long to wait for the database, in seconds.
            thread_timeout: How long to wait for threads whose code still runs, in seconds.
        """
        if os.getpid() != self._process:
            return
        native: _native.Engine | None = getattr(self, "native", None)
        with self._closing:
            if self._is_ended:
                return
            deadline = time.monotonic() + thread_timeout
            self.is_closed = True
            for call, branch in list(self.inline.items()):
                self._requeue(call, branch)
            if native is not None:
                native.shutdown(grace)
            self.processes.close()
            self._is_ended = True
            self.threads.stop(deadline)

    @property
    def needs_shutdown(self) -> bool:
        """Whether the engine was opened in this process and has not ended yet."""
        return not self._is_ended and os.getpid() == self._process

    def __del__(self) -> None:
        native: _native.Engine | None = getattr(self, "native", None)
        if native is None or self.is_closed or os.getpid() != self._process:
            return
        process_hooks.warn_unclosed("an engine")
        self.release()

    def release(self) -> None:
        """Ends the engine in the background, after the program has dropped it without closing it."""
        self.is_closed = True
        self.native.release()
        self.processes.close()
        self.threads.release()
        if self.loop is not None:
            self.loop.release()


def sqlite_file(url: str) -> str | None:
    """Returns the path of the file that a URL of SQLite names; None for any other URL."""
    if not url.startswith("sqlite:"):
        return None
    path = url.removeprefix("sqlite:").partition("?")[0]
    if path.startswith("//"):
        # a third slash has no meaning: before an absolute path a URL has four slashes
        path = path[2:].removeprefix("/")
    return os.path.abspath(unquote(path))


def called_in_workflow_error(verb: str, workflow: Any) -> InvalidArgument:
    """Returns the error for a call of `start` or `run` in the code of a workflow. A replay would repeat the
    call.

    Args:
        verb: The called method: `start` or `run`.
        workflow: The workflow, as the caller has given it.
    """
    found, bound_args, _ = start_target(workflow)
    name = f"{'self.' if bound_args else ''}{getattr(found, '__name__', found)}"
    example = f"{name}.start(...)" if verb == "start" else f"{name}(...)"
    return InvalidArgument(
        f"engine.{verb} is called in the code of a workflow, where a replay would {verb} it again: write "
        f"{example}, or call it in a step"
    )


__all__ = ["OpenEngine"]
