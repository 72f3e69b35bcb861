"""How the engine reaches Python: an event loop through a watched descriptor, threads through a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import Any
from weakref import WeakKeyDictionary

from stepfast import _native
from stepfast.branch import branch_var


class LoopPort:
    """The port of one event loop. Tasks that workflow code makes there become branches."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.native = _native.Port(loop)
        self.unwind: Callable[[str], None] | None = None
        self._begun: Callable[[int, _native.Branch, Any], None] | None = None
        loop.add_reader(self.native.fileno(), self._drain)
        self._chain_factory()

    def close(self) -> None:
        """Forgets the loop."""
        if not self.loop.is_closed():
            self.loop.remove_reader(self.native.fileno())

    def serve(
        self,
        begun: Callable[[int, _native.Branch, Any], None],
        unwind: Callable[[str], None],
    ) -> None:
        """Says what to do with executions that begin, or have to unwind, here."""
        self._begun, self.unwind = begun, unwind

    def _drain(self) -> None:
        others = self.native.drain()
        if others is None:
            return
        for note in others:
            if isinstance(note, str):
                if self.unwind is not None:
                    self.unwind(note)
            elif self._begun is not None:
                self._begun(*note)

    def _chain_factory(self) -> None:
        loop = self.loop
        before = loop.get_task_factory()
        if getattr(before, "is_stepfasts", False):
            return

        def factory(loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> asyncio.Future[Any]:
            branch = branch_var.get()
            forked = branch.fork() if branch is not None else None
            if forked is not None:
                context = kwargs.get("context")
                context = copy_context() if context is None else context.copy()
                context.run(branch_var.set, forked)
                kwargs["context"] = context
            if before is not None:
                task = before(loop, coro, **kwargs)
            else:
                task = asyncio.Task(coro, loop=loop, **kwargs)
            if forked is not None:
                task.add_done_callback(lambda _: forked.end())
                forked.watch()
            return task

        factory.is_stepfasts = True  # type: ignore[attr-defined]
        loop.set_task_factory(factory)


_ports: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopPort] = WeakKeyDictionary()


def loop_port() -> LoopPort:
    """The port of the running loop."""
    loop = asyncio.get_running_loop()
    port = _ports.get(loop)
    if port is None:
        port = _ports[loop] = LoopPort(loop)
    return port


def current_port() -> _native.Port | None:
    """The port of the loop that runs in this thread; `None` if there is none."""
    loop = asyncio._get_running_loop()
    if loop is None:
        return None
    return loop_port().native
