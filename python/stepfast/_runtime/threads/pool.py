"""The threads that run sync workflows."""

from __future__ import annotations

import functools
import threading
import time
import weakref
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

from stepfast import _native
from stepfast._runtime.branch import CHILD, here_var
from stepfast._runtime.exceptions_here import entry
from stepfast._runtime.failures import failure_of
from stepfast._runtime.waiting import wait_for_call

if TYPE_CHECKING:
    from stepfast._runtime.host import Host

#: A thread that waits for a child runs it itself, unless so many wait on it already.
DEEPEST = 16


class Nesting(threading.local):
    """How many executions this thread has begun to run and not ended."""

    depth = 0


nesting: Final[Nesting] = Nesting()


class Threads:
    """A pool of threads, one more than have work, up to a bound. They do not keep the engine."""

    def __init__(self, opened: Host, most: int) -> None:
        self.native: _native.Port = _native.Port(None)
        self._opened: weakref.ref[Host] = weakref.ref(opened)
        self._most = most
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        #: Threads that wait for work.
        self._idle = 0

    def start(self) -> None:
        """Starts the first thread; another one follows whenever the last one that waits gets work."""
        opened = self._opened()
        if opened is not None and any(not workflow.is_async for workflow in opened.workflows):
            self._add()

    def _add(self) -> None:
        with self._lock:
            if self._idle > 0 or len(self._threads) >= self._most:
                return
            name = f"stepfast-{len(self._threads)}"
            work = functools.partial(_work, weakref.ref(self), self.native)
            thread = threading.Thread(target=work, name=name, daemon=True)
            # `stop` joins what is in the list: only threads that have started
            thread.start()
            self._idle += 1
            self._threads.append(thread)

    def let_go(self) -> None:
        """Lets the threads end, each when its code has."""
        self.native.close()

    def stop(self, over: float) -> None:
        """Lets the threads end, and waits for them until `over`."""
        self.let_go()
        for thread in list(self._threads):
            if thread is not threading.current_thread():
                thread.join(max(0.0, over - time.monotonic()))

    def begin(self, note: tuple[int, _native.Branch, Any]) -> None:
        """Runs what begins, in this thread."""
        with self._lock:
            self._idle -= 1
        self._add()
        # a thread runs one execution after the other: none sees what the code of another has set
        Context().run(self._run, *note)
        with self._lock:
            self._idle += 1

    @entry
    def _run(self, number: int, branch: _native.Branch, arguments: Any) -> BaseException | None:
        opened = self._opened()
        if opened is None:
            return None
        branch.home = opened
        workflow = opened.workflows[number]
        token = here_var.set(branch)
        nesting.depth += 1
        try:
            args, kwargs = arguments
            branch.succeed(workflow.function(*args, **kwargs))
        except BaseException as raised:
            wants_end = isinstance(raised, (KeyboardInterrupt, SystemExit))
            if wants_end:
                # the execution goes on from the record
                branch.put_off()
            branch.fail(failure_of(raised))
            return raised if wants_end else None
        finally:
            nesting.depth -= 1
            here_var.reset(token)
        return None

    def child(
        self,
        branch: _native.Branch,
        number: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        order: _native.Order | None = None,
    ) -> Any:
        """Runs a child in this thread if it begins here, else waits for it."""
        may_host = nesting.depth < DEEPEST
        call = branch.child(branch.home.native, number, args, kwargs, may_host, order)
        try:
            while call.wait() == CHILD:
                note = call.offered()
                raised = Context().run(self._run, *note) if note is not None else None
                if raised is not None:
                    # this thread, and the program with it
                    branch.put_off()
                    raise raised
            return wait_for_call(call)
        finally:
            call.close()


def _work(threads: weakref.ref[Threads], port: _native.Port) -> None:
    """What a thread of a pool does until its port is closed."""
    while True:
        note = port.next()
        pool = threads() if note is not None else None
        if pool is None:
            return
        if isinstance(note, tuple):
            pool.begin(note)
        # nothing is kept alive by a thread that waits
        del note, pool
