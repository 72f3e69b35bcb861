"""The interface that the runtime needs of an open engine: where executions run, and the known workflows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from stepfast import _native
    from stepfast._runtime.event_loop.loop import EngineLoop
    from stepfast._runtime.threads.pool import ThreadPool


class Definition(Protocol):
    """A workflow, as the code that runs it needs it."""

    @property
    def name(self) -> str:
        """The name under which its executions are recorded."""
        ...

    @property
    def is_async(self) -> bool:
        """Whether its code runs on an event loop."""
        ...

    @property
    def function(self) -> Any:
        """Its code."""
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
        """Its workflows, by number."""
        ...

    @property
    def needs_shutdown(self) -> bool:
        """Whether the engine is still open in this process and has to be ended."""
        ...

    @property
    def numbers(self) -> dict[Any, int]:
        """The numbers of its workflows."""
        ...

    def number(self, workflow: Any) -> int:
        """Returns the number of a workflow."""
        ...

    def redefine(self, workflow: Any) -> None:
        """Runs the new code of a workflow that was defined again."""
        ...

    def end(self, grace: float, thread_timeout: float) -> None:
        """Ends the engine, once.

        Args:
            grace: How long to wait for the database, in seconds.
            thread_timeout: How long to wait for threads whose code still runs, in seconds.
        """
        ...
