"""How an engine reaches the event loop that its async workflows run on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from stepfast import _native
from stepfast.branch import branch_var
from stepfast.factory import chained
from stepfast.failure import failure_of
from stepfast.rest import OUTSIDE, waits_of

if TYPE_CHECKING:
    from stepfast.opened import Opened


class Loop:
    """An event loop, as one engine uses it: its notes come through a descriptor that the loop watches."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.native: _native.Port = _native.Port(loop)
        self._opened: Opened | None = None
        #: What runs of executions wait for outside of durable calls has to be cancelled if they unwind.
        self._tasks: dict[int, asyncio.Future[Any]] = {}
        self._forked: dict[int, set[asyncio.Future[Any]]] = {}
        #: Tasks of callers that run the code of an execution themselves, and those of them that unwind it.
        self.callers: dict[int, asyncio.Task[Any] | None] = {}
        self.unwound: set[int] = set()
        loop.add_reader(self.native.fileno(), self._drain)
        self._factory = chained(loop)
        self.native.set_waits(self._waits)

    def serve(self, opened: Opened) -> None:
        """Runs the async workflows of `opened`."""
        self._opened = opened

    def close(self) -> None:
        """Leaves the loop alone."""
        if not self.loop.is_closed():
            self.loop.remove_reader(self.native.fileno())

    def leave(self, run: int, caller: asyncio.Task[Any] | None) -> None:
        """Code that was told to unwind has ended in its caller's task: the caller was not cancelled."""
        self.unwound.discard(run)
        if caller is not None:
            caller.uncancel()

    def keep(self, run: int, task: asyncio.Future[Any]) -> None:
        """Keeps a task that the code of a run has made."""
        self._forked.setdefault(run, set()).add(task)
        task.add_done_callback(lambda task: self._forget(run, task))

    def _forget(self, run: int, task: asyncio.Future[Any]) -> None:
        tasks = self._forked.get(run)
        if tasks is not None:
            tasks.discard(task)
            if not tasks:
                del self._forked[run]

    def _waits(self, run: int) -> int:
        """What the branches of a run wait for."""
        main = self._tasks.get(run)
        # where a caller runs the code in a task of its own, nobody knows what that does besides
        return OUTSIDE if main is None else waits_of({main, *self._forked.get(run, ())})

    def unwind(self, run: int) -> None:
        """Cancels what a run waits for outside of durable calls, which unwind by themselves."""
        main = self._tasks.get(run)
        if main is not None:
            main.cancel()
        caller = self.callers.get(run)
        if caller is not None and run not in self.unwound:
            self.unwound.add(run)
            caller.cancel()
        for task in self._forked.get(run, ()):
            task.cancel()

    def _drain(self) -> None:
        others = self.native.drain()
        if others is None:
            return
        for note in others:
            if isinstance(note, int):
                self.unwind(note)
            elif note is not None:
                self._begin(*note)

    def _begin(self, number: int, branch: _native.Branch, arguments: Any) -> None:
        """An execution begins here, in a task of its own."""
        opened = self._opened
        assert opened is not None
        branch.home = opened
        run = branch.run
        code = drive(opened.workflows[number].function, branch, arguments, self._tasks, run)
        task = self._factory.task(self.loop, code, branch)
        # an eager factory may have run it to its end
        if not task.done():
            self._tasks[run] = task


async def drive(
    function: Any, branch: _native.Branch, arguments: Any, tasks: dict[int, asyncio.Future[Any]], run: int
) -> None:
    """Runs the code of an execution, and leaves what it came to; then forgets its task."""
    branch_var.set(branch)
    try:
        args, kwargs = arguments
        branch.succeed(await function(*args, **kwargs))
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        branch.hand_back()
        raise
    except BaseException as raised:
        # of code that unwinds nothing counts, be it a group of what its branches unwind with
        if not branch.is_closing:
            branch.fail(failure_of(raised))
    finally:
        tasks.pop(run, None)
