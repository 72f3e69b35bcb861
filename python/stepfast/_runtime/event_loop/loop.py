"""How an engine reaches the event loop that its async workflows run on."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
import weakref
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

from stepfast import _native
from stepfast._runtime import process_hooks
from stepfast._runtime.event_loop.blocked_on import OUTSIDE, waits_of
from stepfast._runtime.event_loop.shutdown import LoopEnd, finished, in_thread
from stepfast._runtime.event_loop.task_factory import chained
from stepfast._runtime.event_loop.task_origin import Dropped
from stepfast._runtime.event_loop.tasks import guard_caller
from stepfast.errors import Invalid, elsewhere, forked

if TYPE_CHECKING:
    from stepfast._runtime.host import Host


#: The loop that runs in this thread, or None.
loop_here: Final = asyncio._get_running_loop


class Loop:
    """An event loop, as one engine uses it: its notes come through a descriptor that the loop watches."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._process = os.getpid()
        self.native: _native.Port = _native.Port(loop)
        self._opened: Callable[[], Host | None] = lambda: None
        self._ending: asyncio.Task[None] | None = None
        self._is_left = False
        #: Nothing begins here any more.
        self._is_over = False
        #: What runs of executions wait for outside of durable calls has to be cancelled if they unwind.
        self._tasks: dict[int, tuple[asyncio.Future[Any], _native.Branch]] = {}
        self._forked: dict[int, set[asyncio.Future[Any]]] = {}
        self._dropped = Dropped()
        #: Callers that run the code of an execution themselves, and unwind it.
        self.unwound: set[int] = set()
        #: What ends the guards of those whose code has several branches, which may cancel each other.
        self.guards: dict[int, Callable[[], None]] = {}
        # executions begin from there, in an empty context, and not in that of the code that opens the engine
        Context().run(loop.add_reader, self.native.fileno(), self._drain)
        self._factory = chained(loop)
        self.native.set_waits(self._waits)
        self.native.set_callers(self.guards, self.unwound)
        self._loop_end = LoopEnd(loop, self._put_off, self._end_unclosed)

    def serve(self, opened: Host) -> None:
        """Runs the async workflows of `opened`."""
        self._opened = weakref.ref(opened)

    def check(self, what: str = "the engine") -> None:
        """Raises `Invalid` unless it is this loop that runs, in this thread."""
        if loop_here() is not self.loop:
            raise elsewhere(what) if os.getpid() == self._process else forked()

    @property
    def is_ending(self) -> bool:
        """True while somebody ends the engine, on this loop."""
        return self._ending is not None and not self._ending.done() and not self.loop.is_closed()

    async def end(self, opened: Host, grace: float, patience: float) -> None:
        """Ends the engine, whatever becomes of who asks for it; see `Host.end`."""
        if self._ending is None:
            end = self._end(opened, grace, patience)
            self._ending = self.loop.create_task(end, name="stepfast-close", context=Context())
        await asyncio.shield(self._ending)

    async def _end(self, opened: Host, grace: float, patience: float) -> None:
        over = time.monotonic() + grace
        closed = in_thread(self.loop, functools.partial(opened.end, grace, patience))
        await finished([closed])
        # what unwinds has heard of it by now, or hears of it here
        self._drain()
        unwinding = [task for task, _ in self._tasks.values()]
        unwinding += [task for tasks in self._forked.values() for task in tasks]
        await finished(unwinding, max(0.0, over - time.monotonic()))
        self.close()
        closed.result()

    async def _end_unclosed(self) -> None:
        """The loop ends, and nobody has closed the engine."""
        opened = self._opened()
        if opened is not None and self._ending is None:
            process_hooks.warn_unclosed("an AsyncEngine")
            await self.end(opened, process_hooks.GRACE, process_hooks.GRACE)

    def _put_off(self) -> None:
        """The loop ends: nothing is recorded of what the code of executions does about that."""
        self._is_over = True
        for _, branch in list(self._tasks.values()):
            branch.put_off()

    def close(self) -> None:
        """Leaves the loop alone."""
        self._loop_end.close()
        if self._is_left:
            return
        self._is_left = True
        self._factory.remove(self.loop)
        if not self.loop.is_closed():
            self.loop.remove_reader(self.native.fileno())

    def let_go(self) -> None:
        """The same, from any thread, some time."""
        if not self.loop.is_closed():
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                self.loop.call_soon_threadsafe(self.close)

    def leave(self, run: int, caller: asyncio.Task[Any] | None) -> None:
        """Code that was told to unwind has ended in its caller's task: the caller was not cancelled."""
        self.unwound.discard(run)
        if caller is not None:
            caller.uncancel()

    def keep(self, branch: _native.Branch, task: asyncio.Future[Any]) -> None:
        """Keeps a task that the code of a run has made."""
        run = branch.run
        caller = self.native.caller(run)
        if caller is not None and run not in self.guards:
            self.guards[run] = guard_caller(caller, branch)
        self._forked.setdefault(run, set()).add(task)
        task.add_done_callback(lambda task: self._forget(branch, task))

    def _forget(self, branch: _native.Branch, task: asyncio.Future[Any]) -> None:
        self._dropped.ended(branch, task)
        tasks = self._forked.get(branch.run)
        if tasks is not None:
            tasks.discard(task)
            if not tasks:
                del self._forked[branch.run]
                self._dropped.all_ended(branch)

    def raised(self, branch: _native.Branch) -> None:
        """The code of an execution has raised, and with that given up what its tasks do."""
        if branch.run in self._forked:
            self._dropped.raised(branch.run)

    def _waits(self, run: int) -> int:
        """What the branches of a run wait for."""
        main, _ = self._tasks.get(run, (None, None))
        # where a caller runs the code in a task of its own, nobody knows what that does besides
        return OUTSIDE if main is None else waits_of({main, *self._forked.get(run, ())})

    def unwind(self, run: int) -> None:
        """Cancels what a run waits for outside of durable calls, which unwind by themselves."""
        main = self._tasks.get(run)
        if main is not None:
            main[0].cancel()
        caller = self.native.caller(run)
        if caller is not None and run not in self.unwound:
            self.unwound.add(run)
            caller.cancel()
        for task in self._forked.get(run, ()):
            self._dropped.unwinds(task)
            task.cancel()

    def _drain(self) -> None:
        others = self.native.drain()
        if others is None:
            return
        opened = None if self._is_over else self._opened()
        for note in others:
            if isinstance(note, int):
                self.unwind(note)
            elif note is not None and opened is not None:
                # else it is put off, as its branch goes away
                self._begin(opened, *note)

    def _begin(self, opened: Host, number: int, branch: _native.Branch, arguments: Any) -> None:
        """An execution begins here, in a task of its own."""
        branch.home = opened
        run = branch.run
        workflow = opened.workflows[number]
        code = _native.Code.main(branch, workflow.function, arguments, self._tasks)
        # with a name asyncio need not make one up
        task = self._factory.task(self.loop, code, branch, name=workflow.name)
        # an eager factory may have run it to its end
        if not task.done():
            self._tasks[run] = (task, branch)


def running_loop() -> asyncio.AbstractEventLoop:
    """The loop that runs, in this thread."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise Invalid(
            "an AsyncEngine needs a running event loop of asyncio (trio has another kind): open it in a "
            "coroutine that asyncio.run runs; programs without a loop use Engine"
        ) from None
