"""Engines: the one object a program opens."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from stepfast import _native
from stepfast.branch import BODY, DONE, PENDING, branch_var
from stepfast.errors import Cancelled, Invalid, Suspended
from stepfast.failure import failure_of
from stepfast.handle import AsyncHandle, Handle, settle, settle_here
from stepfast.port import LoopPort, loop_port
from stepfast.step import over
from stepfast.workflow import registered

P = ParamSpec("P")
R = TypeVar("R")

#: Executions of sync workflows that run at a time.
THREADS = 64


class _Opened:
    """What both engines are: the native one, and its workflows by number."""

    def __init__(
        self,
        url: str,
        loop: LoopPort | None,
        *,
        max_running: int,
        suspend_after: float,
        value_limit: int,
        threads: int,
    ) -> None:
        self.workflows = registered()
        self.numbers = {workflow: n for n, workflow in enumerate(self.workflows)}
        self.threads = Threads(self, threads)
        ports = [
            loop.native if workflow.is_async and loop is not None else self.threads.native
            for workflow in self.workflows
        ]
        definitions = [
            (workflow.name, workflow.eager, port)
            for workflow, port in zip(self.workflows, ports, strict=True)
        ]
        self.native = _native.Engine.open(url, definitions, max_running, suspend_after, value_limit)
        self.threads.start()

    def number(self, workflow: Any) -> int:
        number = self.numbers.get(workflow)
        if number is None:
            raise Invalid(f"{workflow!r} was defined after the engine was opened, or is no workflow")
        return number

    def close(self, grace: float) -> None:
        self.native.shutdown(grace)
        self.threads.stop()


class Threads:
    """The threads that run sync workflows."""

    def __init__(self, opened: _Opened, most: int) -> None:
        self.native = _native.Port(None)
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
            note = self.native.next(0.2)
            if isinstance(note, tuple):
                if len(self.native) and len(self._threads) < self._most:
                    self._add()
                self._run(*note)

    def _run(self, number: int, branch: _native.Branch, arguments: Any) -> None:
        workflow = self._opened.workflows[number]
        token = branch_var.set(branch)
        try:
            args, kwargs = arguments
            branch.succeed(workflow.function(*args, **kwargs))
        except (Suspended, Cancelled):
            pass
        except Exception as raised:
            branch.fail(failure_of(raised))
        finally:
            branch_var.reset(token)


class Engine:
    """Runs workflows on a store, for programs without an event loop."""

    def __init__(
        self,
        url: str,
        *,
        max_running: int = 10_000,
        suspend_after: float = 5.0,
        value_limit: int = 256 * 1024 * 1024,
        threads: int = THREADS,
    ) -> None:
        self._opened = _Opened(
            url,
            None,
            max_running=max_running,
            suspend_after=suspend_after,
            value_limit=value_limit,
            threads=threads,
        )

    def start(
        self,
        workflow: Callable[..., R],
        /,
        *args: Any,
        workflow_id: str | None = None,
        **kwargs: Any,
    ) -> Handle[R]:
        """Starts an execution. When this returns, it is durable that it will run to its end."""
        opened = self._opened
        call = opened.native.start(opened.number(workflow), args, kwargs, None, workflow_id)
        return Handle(settle_here(call))

    def run(
        self,
        workflow: Callable[..., R],
        /,
        *args: Any,
        workflow_id: str | None = None,
        **kwargs: Any,
    ) -> R:
        """Starts an execution and waits for its output."""
        opened = self._opened
        number = opened.number(workflow)
        function: Any = opened.workflows[number].function
        call = opened.native.run(number, args, kwargs, None, workflow_id)
        turn = call.poll()
        if turn == BODY:
            begun = call.begun()
            assert begun is not None
            branch, (args, kwargs) = begun
            token = branch_var.set(branch)
            try:
                turn = call.returned(function(*args, **kwargs))
            except (Suspended, Cancelled):
                turn = call.unwound()
            except Exception as raised:
                turn = call.raised(failure_of(raised))
            finally:
                branch_var.reset(token)
        if turn == PENDING:
            turn = call.wait()
        if turn != DONE:
            raise over(call, turn, None)
        output: R = call.value()
        return output

    def close(self, grace: float = 10.0) -> None:
        """Ends the engine: what runs is handed back, what is staged is flushed."""
        self._opened.close(grace)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncEngine:
    """The same for programs with an event loop, on which async workflows run."""

    def __init__(
        self,
        url: str,
        *,
        max_running: int = 10_000,
        suspend_after: float = 5.0,
        value_limit: int = 256 * 1024 * 1024,
        threads: int = THREADS,
    ) -> None:
        self._open = functools.partial(
            _Opened,
            url,
            max_running=max_running,
            suspend_after=suspend_after,
            value_limit=value_limit,
            threads=threads,
        )
        self._tasks: dict[str, set[asyncio.Task[Any]]] = {}

    async def open(self) -> Self:
        """Opens the store, and the engine on it; `async with` does it."""
        self._port = loop_port()
        self._native_port = self._port.native
        self._port.serve(self._begin, self._unwind)
        self._opened = await asyncio.to_thread(self._open, self._port)
        return self

    async def start(
        self,
        workflow: Callable[..., Any],
        /,
        *args: Any,
        workflow_id: str | None = None,
        **kwargs: Any,
    ) -> AsyncHandle[Any]:
        """Starts an execution. When this returns, it is durable that it will run to its end."""
        opened = self._opened
        call = opened.native.start(opened.number(workflow), args, kwargs, self._native_port, workflow_id)
        return AsyncHandle(await settle(call))

    async def run(
        self,
        workflow: Callable[..., Any],
        /,
        *args: Any,
        workflow_id: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Starts an execution and waits for its output."""
        opened = self._opened
        number = opened.number(workflow)
        call = opened.native.run(number, args, kwargs, self._native_port, workflow_id)
        turn = call.poll()
        if turn == BODY:
            begun = call.begun()
            assert begun is not None
            branch, (args, kwargs) = begun
            token = branch_var.set(branch)
            branch.watch()
            try:
                output = await opened.workflows[number].function(*args, **kwargs)
                turn = call.returned(output)
            except (Suspended, Cancelled):
                turn = call.unwound()
            except Exception as raised:
                turn = call.raised(failure_of(raised))
            finally:
                branch_var.reset(token)
        while turn == PENDING:
            await call
            turn = call.turn
        if turn != DONE:
            raise over(call, turn, None)
        return call.value()

    def _begin(self, number: int, branch: _native.Branch, arguments: Any) -> None:
        """An execution begins here, in a task of its own."""
        key = branch.key
        task = self._port.loop.create_task(self._drive(number, branch, arguments))
        self._tasks.setdefault(key, set()).add(task)
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def _drive(self, number: int, branch: _native.Branch, arguments: Any) -> None:
        branch_var.set(branch)
        branch.watch()
        function: Any = self._opened.workflows[number].function
        try:
            args, kwargs = arguments
            branch.succeed(await function(*args, **kwargs))
        except (Suspended, Cancelled):
            pass
        except Exception as raised:
            branch.fail(failure_of(raised))

    def _unwind(self, key: str) -> None:
        for task in self._tasks.get(key, ()):
            task.cancel()

    async def close(self, grace: float = 10.0) -> None:
        """Ends the engine: what runs is handed back, what is staged is flushed."""
        await asyncio.to_thread(self._opened.close, grace)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


__all__ = ["AsyncEngine", "Engine"]
