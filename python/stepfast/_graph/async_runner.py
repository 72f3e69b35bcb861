"""Runs the tasks of an async graph, each in a task of the event loop."""

from __future__ import annotations

import asyncio
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from stepfast._runtime.branch import current_branch, unwind_exception
from stepfast._workflow.gather import make_task

if TYPE_CHECKING:
    from stepfast._graph.graph_run import GraphRun


async def run_in_tasks(run: GraphRun) -> dict[str, Any]:
    """Runs all tasks of a graph, and returns their values by name.

    Raises:
        Exception: The exception of the first task that has failed, in topological order.
    """
    running: dict[asyncio.Future[Any], int] = {}
    ended: asyncio.Queue[asyncio.Future[Any]] = asyncio.Queue()
    try:
        while True:
            while (number := run.begin_next()) is not None:
                task = make_task(_call(run, number))
                running[task] = number
                task.add_done_callback(ended.put_nowait)
            if not running:
                return run.outcome()
            task = await ended.get()
            number = running.pop(task)
            error = None if task.cancelled() else task.exception()
            if error is None and not task.cancelled():
                run.succeed(number, task.result())
            elif isinstance(error, Exception):
                run.fail(number, error)
            else:
                # the run stops, or the program ends
                if run.branch is not None and run.branch.stop_code:
                    raise unwind_exception(run.branch.stop_code)
                task.result()
    finally:
        for task in running:
            task.cancel()


async def _call(run: GraphRun, number: int) -> Any:
    value = run.call(number, current_branch())
    return await value if isawaitable(value) else value


__all__ = ["run_in_tasks"]
