"""Runs the tasks of an async graph, each in a task of the event loop."""

from __future__ import annotations

import asyncio
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from stepfast._native import Branch
from stepfast._runtime.branch import current_branch, unwind_exception
from stepfast._workflow.concurrency.calls import make_task

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
            ready = run.begin_ready()
            if len(ready) == 1 and not running:
                # nothing runs beside this task, so it needs no task of the loop
                await _run_here(run, ready[0])
                continue
            for number in ready:
                task = make_task(_call(run, number, None))
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


async def _run_here(run: GraphRun, number: int) -> None:
    try:
        value = await _call(run, number, run.branch)
    except Exception as error:
        run.fail(number, error)
    else:
        run.succeed(number, value)


async def _call(run: GraphRun, number: int, branch: Branch | None) -> Any:
    """Calls a task in a branch; None for the branch of the running task of the loop."""
    value = run.call(number, current_branch() if branch is None else branch)
    return await value if isawaitable(value) else value


__all__ = ["run_in_tasks"]
