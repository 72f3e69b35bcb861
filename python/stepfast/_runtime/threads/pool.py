"""`ThreadPool`: the threads that run sync workflows."""

from __future__ import annotations

import functools
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

from stepfast import _native
from stepfast._runtime.branch import RUN_CHILD, call_in_empty_context
from stepfast._runtime.code_exceptions import execution_entry
from stepfast._runtime.failures import workflow_failure
from stepfast._runtime.waiting import wait_for_call

if TYPE_CHECKING:
    from stepfast._runtime.engine_interface import Host

#: The maximum number of executions that a thread runs, one nested in the other. Up to this depth, a thread
#: that waits for a child runs the child itself.
MAX_NESTING = 16


class Nesting(threading.local):
    """The number of unfinished executions that a thread runs, one nested in the other."""

    depth = 0


nesting: Final[Nesting] = Nesting()


class ThreadPool:
    """A bounded pool of threads. It keeps one idle thread in reserve until it has `max_threads` threads.

    The threads do not keep the engine alive.

    Args:
        host: The engine.
        max_threads: The maximum number of threads.
    """

    def __init__(self, host: Host, max_threads: int) -> None:
        self.native: _native.Port = _native.Port(None)
        self._host: weakref.ref[Host] = weakref.ref(host)
        self._max_threads = max_threads
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        #: The number of threads that wait for an execution to run.
        self._idle = 0

    def start(self) -> None:
        """Starts the first thread, if the engine has sync workflows. Another thread follows whenever the last
        idle thread begins an execution."""
        host = self._host()
        if host is not None and any(not workflow.is_async for workflow in host.workflows):
            self._add()

    def _add(self) -> None:
        with self._lock:
            if self._idle > 0 or len(self._threads) >= self._max_threads:
                return
            name = f"stepfast-{len(self._threads)}"
            run = functools.partial(_run_thread, weakref.ref(self), self.native)
            thread = threading.Thread(target=run, name=name, daemon=True)
            # only a started thread may be added to the list, because `stop` joins all threads of the list
            thread.start()
            self._idle += 1
            self._threads.append(thread)

    def release(self) -> None:
        """Ends each thread as soon as the code that it runs has ended. Does not wait."""
        self.native.close()

    def stop(self, deadline: float) -> None:
        """Ends the threads as `release` does, and waits for them until `deadline`, a time of
        `time.monotonic()`."""
        self.release()
        for thread in list(self._threads):
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def begin(self, new_run: tuple[int, _native.Branch, Any]) -> None:
        """Runs an execution in this thread, which is a thread of the pool. `new_run` has the number of the
        workflow, the first branch, and the arguments."""
        with self._lock:
            self._idle -= 1
        self._add()
        self._run(*new_run)
        with self._lock:
            self._idle += 1

    @execution_entry
    def _run(self, number: int, branch: _native.Branch, arguments: Any) -> BaseException | None:
        host = self._host()
        if host is None:
            return None
        branch.host = host
        workflow = host.workflows[number]
        nesting.depth += 1
        try:
            branch.succeed(call_in_empty_context(branch, workflow.function, arguments))
        except BaseException as raised:
            ends_program = isinstance(raised, (KeyboardInterrupt, SystemExit))
            if ends_program:
                # another worker continues the execution from its record
                branch.defer()
            branch.fail(workflow_failure(branch, raised))
            return raised if ends_program else None
        finally:
            nesting.depth -= 1
        return None

    def run_child(
        self,
        branch: _native.Branch,
        number: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: _native.StartOptions | None = None,
        task: _native.StepSettings | None = None,
    ) -> Any:
        """Returns the output of a child. If the child begins in this engine at once, this thread runs it.
        With the settings of a task, the child is this task of a graph."""
        may_host = nesting.depth < MAX_NESTING
        call = branch.child(branch.host.native, number, args, kwargs, may_host, options, task)
        try:
            while call.wait() == RUN_CHILD:
                new_run = call.take_offered_run()
                raised = self._run(*new_run) if new_run is not None else None
                if raised is not None:
                    # the exception asks the program to end: the parent too continues from its record
                    branch.defer()
                    raise raised
            return wait_for_call(call)
        finally:
            call.close()


def _run_thread(threads: weakref.ref[ThreadPool], port: _native.Port) -> None:
    """Runs executions in a thread of a pool until the port is closed."""
    while True:
        new_run = port.next_message()
        pool = threads() if new_run is not None else None
        if pool is None:
            return
        if isinstance(new_run, tuple):
            pool.begin(new_run)
        # a thread that waits for the next message must not keep the pool and the run alive
        del new_run, pool
