"""The open engine, as the code below it sees it: where executions run, and which workflows there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from stepfast import _native
    from stepfast._runtime.event_loop.loop import Loop
    from stepfast._runtime.threads.pool import Threads


class Definition(Protocol):
    """A workflow, as what runs its code sees it."""

    @property
    def name(self) -> str:
        """The name under which its executions are recorded."""
        ...

    @property
    def is_async(self) -> bool:
        """True if its code runs on an event loop."""
        ...

    @property
    def function(self) -> Any:
        """Its code."""
        ...


class Host(Protocol):
    """An open engine, which runs executions on an event loop and on threads."""

    native: _native.Engine
    loop: Loop | None
    threads: Threads
    is_closed: bool
    #: The file that it has open, of SQLite.
    file: str | None

    @property
    def workflows(self) -> Sequence[Definition]:
        """Its workflows, by number."""
        ...

    @property
    def is_to_end(self) -> bool:
        """True if the engine has to be ended, in this process."""
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

    def end(self, grace: float, patience: float) -> None:
        """Ends the engine, once."""
        ...
