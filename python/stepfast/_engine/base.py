"""What a sync and an async engine have in common."""

from __future__ import annotations

import builtins
import inspect
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, cast
from urllib.parse import unquote

from stepfast import _native
from stepfast._engine.filter import Filter, told
from stepfast._engine.handle import AsyncHandle
from stepfast._options.queue import Told
from stepfast._options.start_options import StartOptions
from stepfast._processes import ProcessPool
from stepfast._processes.import_guard import forbid_engines
from stepfast._runtime import log, process_hooks
from stepfast._runtime.branch import current_branch, current_code, forbid_in_workflow
from stepfast._runtime.event_loop.loop import EngineLoop
from stepfast._runtime.threads.pool import ThreadPool
from stepfast._validation import bounds
from stepfast._validation.text import short_repr
from stepfast._workflow.binding import unbind
from stepfast._workflow.workflow import Workflow, open_engines, refuse_replaced, registered
from stepfast.errors import InvalidArgument


class Opened:
    """An open engine: the native one, its workflows by number, and where their code runs. What it is asked
    for comes as calls, for whoever waits in a thread or on the loop."""

    def __init__(
        self,
        url: str,
        loop: EngineLoop | None = None,
        *,
        max_running: int,
        suspend_after: float,
        value_limit: int,
        threads: int,
        processes: int | None,
        app_version: str | None = None,
        max_recoveries: int = 10,
        queues: Iterable[tuple[Told, str]] = (),
        serve: builtins.list[str] | None = None,
        is_client: bool = False,
    ) -> None:
        forbid_engines()
        self.processes: ProcessPool = ProcessPool(processes)
        self._process = os.getpid()
        self.is_closed: bool = False
        self._is_ended = False
        self._closing = threading.RLock()
        #: Executions that callers run in their own threads.
        self.inline: dict[_native.Call, _native.Branch] = {}
        # what cannot run here is not registered: its executions are for others to claim
        self.workflows: list[Workflow[..., Any]] = [
            workflow for workflow in registered() if loop is not None or is_client or not workflow.is_async
        ]
        self._is_client = is_client
        #: The file that it has open, of SQLite.
        self.file: str | None = file_of(url)
        self.numbers: dict[Any, int] = {workflow: number for number, workflow in enumerate(self.workflows)}
        self.loop = loop
        self.port: _native.Port | None = loop.native if loop is not None else None
        #: True if a task of its loop runs now, in this thread: what is false may be so, too.
        self.is_here: Callable[[], bool] = loop.native.is_in_task if loop is not None else lambda: True
        self.threads: ThreadPool = ThreadPool(self, threads)
        log.install()
        if loop is not None:
            # executions may begin as soon as it is open
            loop.serve(self)
        if is_client:
            names = [(workflow.name, workflow.signature) for workflow in self.workflows]
            self.native: _native.Engine = _native.Engine.open_client(url, names)
        else:
            definitions = [
                (workflow.name, workflow.eager, self._port_of(workflow), workflow.signature)
                for workflow in self.workflows
            ]
            self.native = _native.Engine.open(
                url,
                definitions,
                max_running,
                threads,
                suspend_after,
                value_limit,
                app_version,
                max_recoveries,
                list(queues),
                serve,
            )
        self.threads.start()
        process_hooks.end_at_exit(self)
        open_engines.add(self)

    def _port_of(self, workflow: Workflow[..., Any]) -> _native.Port:
        """Where its code runs."""
        return self.threads.native if self.loop is None or not workflow.is_async else self.loop.native

    def asked(self, what: str) -> _native.Engine:
        """The native engine, for what a program asks for outside of the code of workflows."""
        forbid_in_workflow(f"engine.{what}")
        return self.native

    def resolved(
        self, verb: str, workflow: Callable[..., Any], args: tuple[Any, ...]
    ) -> tuple[int, tuple[Any, ...]]:
        """The number of a workflow that a program starts or runs, and all of its arguments."""
        if current_branch() is not None:
            raise in_workflow(verb, workflow)
        number = self.known(workflow)
        if number is None:
            workflow, args = unbind(workflow, args)
            number = self.number(workflow)
        return number, args

    def known(self, workflow: Any) -> int | None:
        """The number of a workflow, if this engine has one for it."""
        try:
            return self.numbers.get(workflow)
        except TypeError:
            # it has no hash: it is no workflow
            return None

    def number(self, workflow: Any) -> int:
        """The number of a workflow in this engine."""
        number = self.known(workflow)
        if number is None:
            refuse_replaced(workflow)
            if self._is_client and isinstance(workflow, (str, Workflow)):
                # by its name, or defined since the client was opened
                given = workflow if isinstance(workflow, str) else workflow.name
                bounds.check_name("the workflow's name", given)
                signature = None if isinstance(workflow, str) else workflow.signature
                number = self.numbers[workflow] = self.native.declare(given, signature)
                return number
            if getattr(workflow, "is_async", False) and self.loop is None:
                raise InvalidArgument(
                    f"{short_repr(workflow)} is async, and runs on an event loop: use an AsyncEngine"
                )
            if not isinstance(workflow, Workflow):
                if inspect.iscoroutine(workflow):
                    # nobody will await it
                    workflow.close()
                raise InvalidArgument(
                    f"{short_repr(workflow)} is no workflow: give a workflow, then its arguments, as in "
                    "engine.start(checkout, order)"
                )
            raise InvalidArgument(
                f"{short_repr(cast('Any', workflow))} is not known to this engine, as it was defined after "
                "that was opened: close the engine, and open it again"
            )
        return number

    def redefine(self, workflow: Workflow[..., Any]) -> None:
        """A workflow was defined again: executions that begin from here on run the new code."""
        for number, known in enumerate(self.workflows):
            if known.name == workflow.name:
                if (known.is_async, known.eager) != (workflow.is_async, workflow.eager):
                    # the engine was told so when it was opened
                    return
                self.workflows[number] = workflow
                self.native.redefine(number, workflow.signature)
                self.numbers[workflow] = number

    def start(
        self,
        workflow: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        order: StartOptions | None,
    ) -> _native.Call:
        """Starts an execution: a handle, when that is durable."""
        number, args = self.resolved("start", workflow, args)
        return self.native.start(
            number,
            args,
            kwargs,
            None,
            None,
            None,
            order,
        )

    def start_in_task(
        self,
        workflow: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        order: StartOptions | None,
    ) -> _native.Call:
        """The same, to be awaited."""
        number = self.known(workflow)
        if number is None or type(current_code.get()) is _native.Branch:
            number, args = self.resolved("start", workflow, args)
        return self.native.start(
            number,
            args,
            kwargs,
            self.port,
            AsyncHandle,
            self,
            order,
        )

    def start_many(
        self, workflow: Callable[..., Any], items: Any, order: StartOptions | None
    ) -> _native.Call:
        """Starts an execution for each tuple of arguments: handles, when all of them are durable."""
        number, before = self.resolved("start", workflow, ())
        if order is not None and order.unique_option is not None:
            raise InvalidArgument(
                f"{order.unique_option} is of one execution, and these are many: leave it out"
            )
        listed: builtins.list[tuple[Any, ...]] = []
        for item in items:
            if item.__class__ is not tuple:
                raise InvalidArgument(
                    f"{short_repr(item)} is no tuple of arguments: write "
                    f"start_many({short_repr(workflow)}, [(1,), (2,)])"
                )
            listed.append((*before, *item))
        return self.native.start_many(number, listed, self.port, order)

    def run(
        self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any], order: StartOptions | None
    ) -> _native.Call:
        """Runs an execution; its code is the caller's to run, if it may begin here at once."""
        return self.native.run(number, args, kwargs, order)

    def _function(self, number: int) -> Callable[..., Any] | None:
        known = self.workflows[number]
        return known.function if known.is_async else None

    def run_in_task(
        self,
        workflow: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        order: StartOptions | None = None,
    ) -> _native.Call:
        """Runs an execution; whoever awaits the call runs async code, if it may begin at once."""
        number = self.known(workflow)
        if number is None or type(current_code.get()) is _native.Branch:
            number, args = self.resolved("run", workflow, args)
        function = None if self._is_client else self._function(number)
        return self.native.run_in_task(
            number,
            args,
            kwargs,
            self.port,
            function,
            self,
            order,
        )

    def list(self, filter: Filter, after: str | None, limit: int) -> _native.Call:
        """Lists executions, or counts them with a limit of 0."""
        what = "count" if limit == 0 else "list"
        return self.asked(what).list(self.port, told(filter), after, limit)

    def act_on_all(self, filter: Filter, *, is_cancel: bool) -> _native.Call:
        """Cancels all that match, or continues them."""
        native = self.asked("cancel_all" if is_cancel else "resume_all")
        conditions = told(filter)
        if all(given is None or given == [] for given in conditions):
            example = 'cancel_all(queue="emails")' if is_cancel else 'resume_all(status="failed")'
            raise InvalidArgument(f"give a condition at least, as in {example}")
        if not is_cancel and filter.get("status") is None and filter.get("is_parked") is None:
            raise InvalidArgument(
                'say what is to be continued: status="failed", status="cancelled" or is_parked=True'
            )
        return native.act_on_all(self.port, conditions, is_cancel)

    def results(self, handles: Iterable[Any]) -> _native.Call:
        """The ends of many executions."""
        forbid_in_workflow("engine.results")
        return _native.Handle.results([handle._native for handle in handles], self.port)

    def begun(self, call: _native.Call, branch: _native.Branch) -> None:
        """The caller of `call` begins to run the code of an execution in its own thread."""
        branch.host = self
        self.inline[call] = branch
        if self.is_closed:
            self._requeue(call, branch)

    @staticmethod
    def _requeue(call: _native.Call, branch: _native.Branch) -> None:
        branch.requeue()
        call.fail_with_shutdown()

    def end(self, grace: float, thread_timeout: float) -> None:
        """Ends the engine, once, and returns when it has ended, even if another thread ends it.

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
            over = time.monotonic() + thread_timeout
            self.is_closed = True
            for call, branch in list(self.inline.items()):
                self._requeue(call, branch)
            if native is not None:
                native.shutdown(grace)
            self.processes.close()
            self._is_ended = True
            self.threads.stop(over)

    @property
    def needs_shutdown(self) -> bool:
        """True if somebody has to end it, here."""
        return not self._is_ended and os.getpid() == self._process

    def __del__(self) -> None:
        native: _native.Engine | None = getattr(self, "native", None)
        if native is None or self.is_closed or os.getpid() != self._process:
            return
        process_hooks.warn_unclosed("an engine")
        self.release()

    def release(self) -> None:
        """Lets the engine end in the background: nobody has it any more."""
        self.is_closed = True
        self.native.release()
        self.processes.close()
        self.threads.release()
        if self.loop is not None:
            self.loop.release()


def file_of(url: str) -> str | None:
    """The file that an URL names, if it is one of SQLite."""
    if not url.startswith("sqlite:"):
        return None
    path = url.removeprefix("sqlite:").partition("?")[0]
    if path.startswith("//"):
        # a third slash says nothing: four begin an absolute path
        path = path[2:].removeprefix("/")
    return os.path.abspath(unquote(path))


def in_workflow(verb: str, workflow: Any) -> InvalidArgument:
    """What an engine starts in the code of a workflow would be started again by a replay."""
    found, bound = unbind(workflow, ())
    name = f"{'self.' if bound else ''}{getattr(found, '__name__', found)}"
    called = f"{name}.start(...)" if verb == "start" else f"{name}(...)"
    return InvalidArgument(
        f"engine.{verb} is called in the code of a workflow, where a replay would {verb} it again: write "
        f"{called}, or do it in a step"
    )
