"""Runs the tasks of a sync graph, each in a thread."""

from __future__ import annotations

import threading
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from stepfast import _native
from stepfast._runtime.branch import current_code, unwind_exception
from stepfast.errors import Cancelled, Suspended

if TYPE_CHECKING:
    from stepfast._graph.graph_run import GraphRun


def run_in_threads(run: GraphRun) -> dict[str, Any]:
    """Runs all tasks of a graph, and returns their values by name.

    While only one task can run, it runs in the caller's thread.

    Raises:
        Exception: The exception of the first task that has failed, in topological order.
    """
    return _TaskThreads(run).run()


class _TaskThreads:
    """The threads in which the tasks of one execution run. A thread runs one task after the other."""

    def __init__(self, run: GraphRun) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._active = 0
        #: An exception that ends the program or unwinds the code; None as long as there is none.
        self._stop: BaseException | None = None
        self._join: _native.Join | None = None

    def run(self) -> dict[str, Any]:
        branch = self._run.branch
        while self._stop is None:
            ready = self._run.begin_ready()
            if not ready:
                break
            if len(ready) == 1:
                # nothing runs beside this task
                self._call(ready[0], branch)
                continue
            self._run_concurrently(ready)
        if self._stop is not None and not isinstance(self._stop, Suspended | Cancelled):
            raise self._stop
        if branch is not None and branch.stop_code:
            raise unwind_exception(branch.stop_code)
        if self._stop is not None:
            raise self._stop
        return self._run.outcome()

    def _run_concurrently(self, ready: list[int]) -> None:
        """Runs tasks in threads, and all further tasks that become ready meanwhile."""
        branch = self._run.branch
        # if the caller runs the execution in its own thread, no other thread drives it
        drives_execution = branch is not None and branch.is_inline
        with self._lock:
            self._active = len(ready)
            branches = [self._begin_branch() for _ in ready]
            # last, after the first branches have begun: without an active branch the execution would seem
            # to be blocked
            self._join = branch.join() if branch is not None else None
            for number, of_task in list(zip(ready, branches, strict=True))[0 if drives_execution else 1 :]:
                self._start_thread(number, of_task)
        if branch is not None and self._join is not None and drives_execution:
            branch.drive(self._join)
        else:
            copy_context().run(self._work, ready[0], branches[0])
        while self._threads:
            self._threads.pop().join()

    def _begin_branch(self) -> _native.Branch | None:
        if self._run.branch is None:
            return None
        branch = self._run.branch.reserve()
        branch.begin()
        return branch

    def _start_thread(self, number: int, branch: _native.Branch | None) -> None:
        context = copy_context()
        thread = threading.Thread(
            target=context.run, args=(self._work, number, branch), name=f"stepfast-task-{number}", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def _work(self, number: int | None, branch: _native.Branch | None) -> None:
        while number is not None:
            if branch is not None:
                current_code.set(branch)
            self._call(number, branch)
            number, branch = self._begin_next(branch)

    def _call(self, number: int, branch: _native.Branch | None) -> None:
        try:
            value = self._run.call(number, branch)
        except Exception as error:
            with self._lock:
                self._run.fail(number, error)
        except BaseException as stop:
            with self._lock:
                if self._stop is None or isinstance(self._stop, Suspended | Cancelled):
                    self._stop = stop
        else:
            with self._lock:
                self._run.succeed(number, value)

    def _begin_next(self, finished: _native.Branch | None) -> tuple[int | None, _native.Branch | None]:
        """Ends the branch of a finished task, and begins the tasks that have become ready: the first one in
        this thread, the others in threads of their own."""
        with self._lock:
            has_stopped = self._stop is not None or (
                self._run.branch is not None and bool(self._run.branch.stop_code)
            )
            ready = [] if has_stopped else self._run.begin_ready()
            # the next branches begin before the finished one ends, so that the number of active branches
            # does not drop in between
            branches = [self._begin_branch() for _ in ready]
            self._active += len(ready) - 1
            for number, branch in list(zip(ready, branches, strict=True))[1:]:
                self._start_thread(number, branch)
            if self._active == 0 and self._join is not None:
                self._join.end()
            if finished is not None:
                finished.end()
            return (ready[0], branches[0]) if ready else (None, None)


__all__ = ["run_in_threads"]
