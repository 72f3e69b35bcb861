"""Replays within one process: one engine closes while the step `hold` runs, and another one continues."""

import asyncio
import warnings
from collections.abc import Callable
from typing import Any

from stepfast import AsyncEngine, StepfastWarning, Workflow, step, workflow

_hold_begun: asyncio.Event | None = None
_runs_ended = 0


@step
async def hold() -> None:
    """Blocks in the first run, until its engine is closed."""
    if not is_replay():
        assert _hold_begun is not None
        _hold_begun.set()
        await asyncio.Event().wait()


def is_replay() -> bool:
    """Returns true in the run that replays the record of the first. Real workflows must not call this."""
    return _runs_ended > 0


def time_limited_workflow(function: Callable[..., Any]) -> Workflow[..., Any]:
    """Returns a workflow that limits its calls by the clock of the loop, without the warning about it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StepfastWarning)
        return workflow(function)


async def run_to_hold(
    url: str, workflow: Workflow[..., Any], *args: Any, is_inline: bool = False, **options: Any
) -> None:
    """Runs a workflow until it is in the step `hold`, then closes the engine."""
    global _hold_begun, _runs_ended
    _hold_begun, _runs_ended = asyncio.Event(), 0
    async with AsyncEngine(url, **options) as engine:
        if is_inline:
            caller = asyncio.create_task(engine.run(workflow.options(workflow_id="replayed"), *args))
        else:
            caller = asyncio.create_task(start_and_await(engine, workflow, *args))
        holding = asyncio.create_task(_hold_begun.wait())
        await asyncio.wait([caller, holding], return_when=asyncio.FIRST_COMPLETED)
        if caller.done():
            holding.cancel()
            await caller
            raise AssertionError("the execution has ended without `hold`")
        caller.cancel()
        await asyncio.wait([caller])
    _runs_ended = 1


async def start_and_await(engine: AsyncEngine, workflow: Workflow[..., Any], *args: Any) -> Any:
    handle = await engine.start(workflow.options(workflow_id="replayed"), *args)
    return await handle


async def replay(
    url: str, workflow: Workflow[..., Any], *args: Any, is_inline: bool = False, **options: Any
) -> Any:
    """Returns the output of a workflow that needs two runs."""
    await run_to_hold(url, workflow, *args, is_inline=is_inline, **options)
    async with AsyncEngine(url, **options) as engine:
        return await start_and_await(engine, workflow, *args)
