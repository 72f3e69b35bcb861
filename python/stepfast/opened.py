"""What a sync and an async engine have in common."""

from __future__ import annotations

from typing import Any

from stepfast import _native
from stepfast.errors import Invalid
from stepfast.loop import Loop
from stepfast.processes import Processes
from stepfast.processes.importing import refuse_engines
from stepfast.threads import Threads
from stepfast.workflow import registered


class Opened:
    """An open engine: the native one, its workflows by number, and where their code runs."""

    def __init__(
        self,
        url: str,
        loop: Loop | None = None,
        *,
        max_running: int,
        suspend_after: float,
        value_limit: int,
        threads: int,
        processes: int | None,
    ) -> None:
        refuse_engines()
        self.processes = Processes(processes)
        # what cannot run here is not registered: its executions are for others to claim
        self.workflows = [workflow for workflow in registered() if loop is not None or not workflow.is_async]
        self._numbers = {workflow: number for number, workflow in enumerate(self.workflows)}
        self.loop = loop
        self.threads = Threads(self, threads)
        definitions = [
            (
                workflow.name,
                workflow.eager,
                loop.native if workflow.is_async and loop is not None else self.threads.native,
            )
            for workflow in self.workflows
        ]
        if loop is not None:
            # executions may begin as soon as it is open
            loop.serve(self)
        self.native = _native.Engine.open(url, definitions, max_running, suspend_after, value_limit)
        self.threads.start()

    def number(self, workflow: Any) -> int:
        """The number of a workflow in this engine."""
        number = self._numbers.get(workflow)
        if number is None:
            if getattr(workflow, "is_async", False) and self.loop is None:
                raise Invalid(f"{workflow!r} is async, and runs on an event loop: use an AsyncEngine")
            raise Invalid(
                f"{workflow!r} is not known to this engine: it is no workflow, or was defined after the "
                "engine was opened"
            )
        return number

    def close(self, grace: float) -> None:
        """Ends the engine."""
        self.native.shutdown(grace)
        self.processes.close()
        self.threads.stop()
