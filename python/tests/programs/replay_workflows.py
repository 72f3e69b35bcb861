"""Replays within one process: an engine is closed while the step `hold` runs, and another one goes on."""

import asyncio
import warnings
from collections.abc import Callable
from typing import Any

from stepfast import AsyncEngine, StepfastWarning, Workflow, step, workflow

_held: asyncio.Event | None = None
_runs = 0


@step
async def hold() -> None:
    """Waits, the first time, until its engine is closed."""
    if not is_replay():
        assert _held is not None
        _held.set()
        await asyncio.Event().wait()


def is_replay() -> bool:
    """True in the run that repeats what the first has recorded. Only for what no workflow should do."""
    return _runs > 0


def warned(function: Callable[..., Any]) -> Workflow[..., Any]:
    """A workflow that limits its calls by the clock of the loop."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StepfastWarning)
        return workflow(function)


async def run_to_hold(
    url: str, workflow: Workflow[..., Any], *args: Any, is_inline: bool = False, **options: Any
) -> None:
    """The first run, which ends in `hold`."""
    global _held, _runs
    _held, _runs = asyncio.Event(), 0
    async with AsyncEngine(url, **options) as engine:
        if is_inline:
            caller = asyncio.create_task(engine.run(workflow.options(workflow_id="it"), *args))
        else:
            caller = asyncio.create_task(awaited(engine, workflow, *args))
        held = asyncio.create_task(_held.wait())
        await asyncio.wait([caller, held], return_when=asyncio.FIRST_COMPLETED)
        if caller.done():
            held.cancel()
            await caller
            raise AssertionError("it has ended without `hold`")
        caller.cancel()
        await asyncio.wait([caller])
    _runs = 1


async def awaited(engine: AsyncEngine, workflow: Workflow[..., Any], *args: Any) -> Any:
    handle = await engine.start(workflow.options(workflow_id="it"), *args)
    return await handle


async def replayed(
    url: str, workflow: Workflow[..., Any], *args: Any, is_inline: bool = False, **options: Any
) -> Any:
    """What the workflow comes to, in two runs."""
    await run_to_hold(url, workflow, *args, is_inline=is_inline, **options)
    async with AsyncEngine(url, **options) as engine:
        return await awaited(engine, workflow, *args)
