"""`Engine`: runs workflows for programs without an event loop."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from stepfast.branch import BODY, DONE, PENDING, branch_var
from stepfast.errors import Cancelled, Suspended
from stepfast.failure import failure_of
from stepfast.handle import Handle, settle_here
from stepfast.opened import Opened
from stepfast.step import over

R = TypeVar("R")


class Engine:
    """Runs workflows on a store. Safe to be used by any number of threads.

    Args:
        url: The store: `sqlite://shop.db`, `postgres://…`, `memory:`.
        max_running: Executions that run at a time in this process; what is started beyond waits.
        suspend_after: An execution that waits longer than so many seconds gives up its memory.
        value_limit: Largest input, step value or output, in encoded bytes.
        threads: Sync workflows that run at a time.
        processes: Bodies of steps with `process=True` that run at a time; by default as many as there are
            processors.

    Raises:
        Invalid: The store cannot be opened, or `processes` is less than 1.
    """

    def __init__(
        self,
        url: str,
        *,
        max_running: int = 10_000,
        suspend_after: float = 5.0,
        value_limit: int = 256 * 1024 * 1024,
        threads: int = 64,
        processes: int | None = None,
    ) -> None:
        self._opened = Opened(
            url,
            max_running=max_running,
            suspend_after=suspend_after,
            value_limit=value_limit,
            threads=threads,
            processes=processes,
        )

    def start(
        self, workflow: Callable[..., R], /, *args: Any, workflow_id: str | None = None, **kwargs: Any
    ) -> Handle[R]:
        """Starts an execution. When this returns, it is durable that it will run to its end."""
        opened = self._opened
        number = opened.number(workflow)
        return Handle(settle_here(opened.native.start(number, args, kwargs, None, workflow_id)))

    def run(
        self, workflow: Callable[..., R], /, *args: Any, workflow_id: str | None = None, **kwargs: Any
    ) -> R:
        """Starts an execution and waits for its output."""
        opened = self._opened
        number = opened.number(workflow)
        call = opened.native.run(number, args, kwargs, None, workflow_id)
        turn = call.wait()
        while turn == BODY:
            begun = call.begun()
            assert begun is not None
            branch, (args, kwargs) = begun
            branch.home = opened
            function: Any = opened.workflows[number].function
            token = branch_var.set(branch)
            try:
                turn = call.returned(function(*args, **kwargs))
            except (Suspended, Cancelled):
                turn = call.unwound()
            except Exception as raised:
                turn = call.raised(failure_of(raised))
            except BaseException:
                # the program is told to end: the execution goes on from the record
                branch.hand_back()
                # the traceback keeps it, and nobody polls it any more
                call.close()
                raise
            finally:
                branch_var.reset(token)
            if turn == PENDING:
                turn = call.wait()
        if turn != DONE:
            raise over(call, turn)
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


__all__ = ["Engine"]
