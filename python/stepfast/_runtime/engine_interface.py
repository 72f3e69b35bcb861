"""The interface of an open engine that the code in `_runtime` uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from stepfast import _native
    from stepfast._runtime.event_loop.loop import EngineLoop
    from stepfast._runtime.threads.pool import ThreadPool


class Definition(Protocol):
    """The attributes of a workflow that the code in `_runtime` uses."""

    @property
    def name(self) -> str:
        """The name under which executions of the workflow are recorded."""
        ...

    @property
    def is_async(self) -> bool:
        """Whether the workflow's code runs on an event loop."""
        ...

    @property
    def function(self) -> Any:
        """The workflow's function."""
        ...


class Host(Protocol):
    """An open engine, which runs executions on an event loop and on threads."""

    native: _native.Engine
    loop: EngineLoop | None
    threads: ThreadPool
    is_closed: bool
    #: The path of the open SQLite file; None for any other store.
    file: str | None

    @property
    def workflows(self) -> Sequence[Definition]:
        """The workflows of the engine. The index is the number of the workflow."""
        ...

    @property
    def needs_shutdown(self) -> bool:
        """Whether the engine was opened in this process and has not ended yet."""
        ...

    @property
    def numbers(self) -> dict[Any, int]:
        """The numbers of the engine's workflows."""
        ...

    def number(self, workflow: Any) -> int:
        """Returns the number of a workflow."""
        ...

    def redefine(self, workflow: Any) -> None:
        """Replaces the code of a workflow that was defined again."""
        ...

    def end(self, grace: float, thread_timeout: float) -> None:
        """Ends the engine once, and returns when it has ended.

        Args:
            grace: How long to wait for the database, in seconds.
            thread_timeout: How long to wait for threads whose code still runs, in seconds.
        """
        ...
