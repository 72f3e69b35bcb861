"""The threads that run sync workflows."""

from __future__ import annotations

import threading
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

from stepfast import _native
from stepfast.branch import CHILD, branch_var
from stepfast.errors import Cancelled, Suspended
from stepfast.failure import failure_of
from stepfast.handle import settle_here

if TYPE_CHECKING:
    from stepfast.opened import Opened

#: A thread without work looks so often whether it is to end, in seconds.
PATIENCE = 0.2
#: A thread that waits for a child runs it itself, unless so many wait on it already.
DEEPEST = 16


class Nesting(threading.local):
    """How many executions this thread has begun to run and not ended."""

    depth = 0


nesting: Final[Nesting] = Nesting()


class Threads:
    """A pool of threads, which grows with the work that waits, up to a bound."""

    def __init__(self, opened: Opened, most: int) -> None:
        self.native: _native.Port = _native.Port(None)
        self._opened, self._most = opened, most
        self._is_over = False
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Starts the first thread; others follow when there is work for them."""
        if any(not workflow.is_async for workflow in self._opened.workflows):
            self._add()

    def stop(self) -> None:
        """Lets the threads end."""
        self._is_over = True
        for thread in self._threads:
            thread.join()

    def _add(self) -> None:
        name = f"stepfast-{len(self._threads)}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while not self._is_over:
            note = self.native.next(PATIENCE)
            if isinstance(note, tuple):
                if len(self.native) and len(self._threads) < self._most:
                    self._add()
                self._run(*note)

    def _run(self, number: int, branch: _native.Branch, arguments: Any) -> None:
        branch.home = self._opened
        workflow = self._opened.workflows[number]
        token = branch_var.set(branch)
        nesting.depth += 1
        try:
            args, kwargs = arguments
            branch.succeed(workflow.function(*args, **kwargs))
        except (Suspended, Cancelled):
            pass
        except Exception as raised:
            branch.fail(failure_of(raised))
        except BaseException:
            # the code wants the program to end: the execution goes on from the record
            branch.hand_back()
        finally:
            nesting.depth -= 1
            branch_var.reset(token)

    def child(
        self, branch: _native.Branch, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs a child in this thread if it begins here, else waits for it."""
        may_host = nesting.depth < DEEPEST
        call = branch.child(self._opened.native, number, args, kwargs, may_host)
        try:
            while call.wait() == CHILD:
                note = call.offered()
                if note is not None:
                    Context().run(self._run, *note)
            return settle_here(call)
        finally:
            call.close()
