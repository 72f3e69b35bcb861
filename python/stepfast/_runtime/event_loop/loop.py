"""`EngineLoop`: connects an engine to the event loop on which its async workflows run."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextvars import Context
from typing import TYPE_CHECKING, Any

from stepfast import _native
from stepfast._runtime import process_hooks
from stepfast._runtime.event_loop.asyncio_internals import current_loop
from stepfast._runtime.event_loop.blocked_on import EXTERNAL, blocked_on
from stepfast._runtime.event_loop.shutdown import LoopShutdownWatch, run_in_thread, wait_until_done
from stepfast._runtime.event_loop.task_factory import install_factory
from stepfast._runtime.event_loop.task_origin import DroppedTasks
from stepfast._runtime.event_loop.tasks import guard_caller_task
from stepfast._runtime.foreign_use import forked_process_error, other_loop_error
from stepfast.errors import InvalidArgument

if TYPE_CHECKING:
    from stepfast._runtime.engine_interface import Host


class EngineLoop:
    """The event loop of an engine. The loop watches a file descriptor, which announces messages of the native
    engine."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._process = os.getpid()
        self.native: _native.Port = _native.Port(loop)
        self._host: Callable[[], Host | None] = lambda: None
        self._end_task: asyncio.Task[None] | None = None
        self._is_released = False
        #: Whether the loop is about to end, so that no further execution begins.
        self._has_ended = False
        #: The first branch of each run and its task, by run id. To unwind a run, the loop must cancel this
        #: task, which may wait outside of durable calls.
        self._root_tasks: dict[int, tuple[asyncio.Future[Any], _native.Branch]] = {}
        self._branch_tasks: dict[int, set[asyncio.Future[Any]]] = {}
        self._dropped_tasks = DroppedTasks()
        #: Ids of runs whose code unwinds in the task of a caller.
        self.unwinding_runs: set[int] = set()
        #: Functions that remove the guards of callers' tasks, by run id. A caller's task is guarded if the
        #: run has several branches, which may cancel each other.
        self.caller_guards: dict[int, Callable[[], None]] = {}
        # executions begin in the callback `_drain`, so it gets an empty context instead of the context of the
        # code that opens the engine
        Context().run(loop.add_reader, self.native.fileno(), self._drain)
        self._factory = install_factory(loop)
        self.native.set_blocked_on(self._blocked_on)
        self.native.set_callers(self.caller_guards, self.unwinding_runs)
        self._shutdown_watch = LoopShutdownWatch(loop, self._defer_all, self._end_unclosed)

    def serve(self, host: Host) -> None:
        """Begins to run the async workflows of an engine on this loop."""
        self._host = weakref.ref(host)

    def check(self, what: str = "the engine") -> None:
        """Checks that this loop runs in this thread.

        Args:
            what: The object that belongs to the loop, as the error message names it.

        Raises:
            InvalidArgument: Another loop or none runs in this thread, or the process was forked.
        """
        if current_loop() is not self.loop:
            raise other_loop_error(what) if os.getpid() == self._process else forked_process_error()

    @property
    def is_ending(self) -> bool:
        """Whether the engine is being ended on this loop."""
        return self._end_task is not None and not self._end_task.done() and not self.loop.is_closed()

    async def end(self, host: Host, grace: float, thread_timeout: float) -> None:
        """Ends the engine even if the caller is cancelled. See `Host.end`."""
        if self._end_task is None:
            end = self._end(host, grace, thread_timeout)
            self._end_task = self.loop.create_task(end, name="stepfast-close", context=Context())
        await asyncio.shield(self._end_task)

    async def _end(self, host: Host, grace: float, thread_timeout: float) -> None:
        deadline = time.monotonic() + grace
        closed = run_in_thread(self.loop, functools.partial(host.end, grace, thread_timeout))
        await wait_until_done([closed])
        # handles the last messages, so that all code that has to unwind does so
        self._drain()
        unwinding = [task for task, _ in self._root_tasks.values()]
        unwinding += [task for tasks in self._branch_tasks.values() for task in tasks]
        await wait_until_done(unwinding, max(0.0, deadline - time.monotonic()))
        self.close()
        closed.result()

    async def _end_unclosed(self) -> None:
        """Ends an engine that was not closed before its loop ended."""
        host = self._host()
        if host is not None and self._end_task is None:
            process_hooks.warn_unclosed("an AsyncEngine")
            await self.end(host, process_hooks.EXIT_GRACE, process_hooks.EXIT_GRACE)

    def _defer_all(self) -> None:
        """Defers all executions at the end of the loop, because the reaction of their code to the end must
        not be recorded."""
        self._has_ended = True
        for _, branch in list(self._root_tasks.values()):
            branch.defer()

    def close(self) -> None:
        """Removes the engine's reader, shutdown watch and task factory from the loop."""
        self._shutdown_watch.close()
        if self._is_released:
            return
        self._is_released = True
        self._factory.remove_engine(self.loop)
        if not self.loop.is_closed():
            self.loop.remove_reader(self.native.fileno())

    def release(self) -> None:
        """Schedules `close` on the loop. Any thread may call this method."""
        if not self.loop.is_closed():
            with contextlib.suppress(RuntimeError):  # the loop was closed
                self.loop.call_soon_threadsafe(self.close)

    def finish_unwinding(self, run_id: int, caller: asyncio.Task[Any] | None) -> None:
        """Calls `uncancel` of a caller's task after the execution's code in it has unwound. The engine had
        cancelled the task only to unwind this code, so the cancellation does not concern the caller."""
        self.unwinding_runs.discard(run_id)
        if caller is not None:
            caller.uncancel()

    def add_branch_task(self, branch: _native.Branch, task: asyncio.Future[Any]) -> None:
        """Registers a task that the code of a run has created."""
        run_id = branch.run_id
        caller = self.native.caller_task(run_id)
        if caller is not None and run_id not in self.caller_guards:
            self.caller_guards[run_id] = guard_caller_task(caller, branch)
        self._branch_tasks.setdefault(run_id, set()).add(task)
        task.add_done_callback(lambda task: self._remove_branch_task(branch, task))

    def _remove_branch_task(self, branch: _native.Branch, task: asyncio.Future[Any]) -> None:
        self._dropped_tasks.task_ended(branch, task)
        tasks = self._branch_tasks.get(branch.run_id)
        if tasks is not None:
            tasks.discard(task)
            if not tasks:
                del self._branch_tasks[branch.run_id]
                self._dropped_tasks.warn_of_dropped(branch)

    def note_raised(self, branch: _native.Branch) -> None:
        """Records that the code of an execution has raised an exception, so that its unfinished tasks are
        abandoned."""
        if branch.run_id in self._branch_tasks:
            self._dropped_tasks.note_raised(branch.run_id)

    def _blocked_on(self, run_id: int) -> int:
        """Returns for what the branches of a run wait; see the module `blocked_on`."""
        main, _ = self._root_tasks.get(run_id, (None, None))
        # without a task of its own, the code runs in the task of a caller, which may also wait for other
        # things
        return EXTERNAL if main is None else blocked_on({main, *self._branch_tasks.get(run_id, ())})

    def unwind(self, run_id: int) -> None:
        """Cancels the waits of a run outside of durable calls. Durable calls unwind by themselves."""
        main = self._root_tasks.get(run_id)
        if main is not None:
            main[0].cancel()
        caller = self.native.caller_task(run_id)
        if caller is not None and run_id not in self.unwinding_runs:
            self.unwinding_runs.add(run_id)
            caller.cancel()
        for task in self._branch_tasks.get(run_id, ()):
            self._dropped_tasks.note_unwinding(task)
            task.cancel()

    def _drain(self) -> None:
        messages = self.native.drain()
        if messages is not None:
            self._handle(iter(messages))

    def _handle(self, messages: Iterator[Any]) -> None:
        """Begins executions, and unwinds others, as the messages of the native engine request."""
        host = self._host()
        try:
            for message in messages:
                if isinstance(message, int):
                    self.unwind(message)
                elif message is not None and host is not None and not self._has_ended:
                    # otherwise the branch is dropped, which defers the execution
                    self._begin(host, *message)
        except BaseException:
            # the code of an execution ends the loop, which the program perhaps runs again
            self.loop.call_soon(self._handle, messages)
            raise

    def _begin(self, host: Host, number: int, branch: _native.Branch, arguments: Any) -> None:
        """Begins an execution in a task of its own."""
        branch.host = host
        run_id = branch.run_id
        workflow = host.workflows[number]
        code = _native.BranchCoroutine.for_execution(branch, workflow.function, arguments, self._root_tasks)
        # with a given name, asyncio need not generate one
        task = self._factory.begin_execution(self.loop, code, branch, workflow.name)
        # code that began at once may have ended already, or may have begun the end of the loop
        if not task.done():
            self._root_tasks[run_id] = (task, branch)
            if self._has_ended:
                branch.defer()


def require_running_loop() -> asyncio.AbstractEventLoop:
    """Returns the event loop that runs in this thread.

    Raises:
        InvalidArgument: No event loop of asyncio runs here.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise InvalidArgument(
            "an AsyncEngine needs a running event loop of asyncio (trio has another kind): open it in a "
            "coroutine that asyncio.run runs; programs without a loop use Engine"
        ) from None
