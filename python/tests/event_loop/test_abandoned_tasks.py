"""Tasks that a workflow abandons when it returns: the engine drops them, with a warning."""

from __future__ import annotations

import asyncio
import inspect
import logging
import warnings

import pytest

import stepfast
from stepfast import AsyncEngine, StepfastWarning, Workflow, step, workflow

UNAWAITED_TASKS: set[asyncio.Future[object]] = set()


@step
async def waits_in_audit(n: int) -> None:
    await asyncio.Event().wait()


@step
async def returns_at_once(n: int) -> int:
    return n


async def runs_audit(n: int) -> None:
    await waits_in_audit(n)


async def raises_at_once() -> None:
    raise LookupError("broken")


@workflow
async def abandons_step(n: int) -> int:
    UNAWAITED_TASKS.add(asyncio.ensure_future(waits_in_audit(n)))
    return await returns_at_once(n)


@workflow
async def abandons_task(n: int) -> int:
    UNAWAITED_TASKS.add(asyncio.create_task(runs_audit(n), name="the audit"))
    return await returns_at_once(n)


@workflow
async def handles_all_tasks(n: int) -> int:
    cancelled = asyncio.create_task(runs_audit(n))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(returns_at_once(n))
    async with stepfast.timeout(60):
        await returns_at_once(n)
    await stepfast.gather(returns_at_once(n), returns_at_once(n))
    cancelled.cancel()
    return task.result()


@workflow
async def fails_beside_task(n: int) -> int:
    await asyncio.gather(runs_audit(n), raises_at_once())
    return n


async def run(program: Workflow[[int], object], workflow_id: str) -> None:
    async with AsyncEngine("memory:") as engine:
        for mode in ("run", "start"):
            try:
                options = program.options(workflow_id=f"{workflow_id}-{mode}")
                if mode == "run":
                    await engine.run(options, 7)
                else:
                    await (await engine.start(options, 7)).result()
            except LookupError:
                assert program is fails_beside_task


@pytest.mark.parametrize(
    ("program", "name"), [(abandons_step, "position"), (abandons_task, "'the audit' (runs_audit)")]
)
def test_warning_names_dropped_tasks(program: Workflow[[int], object], name: str) -> None:
    with pytest.warns(StepfastWarning) as warned:
        asyncio.run(run(program, "abandoned"))
    assert len(warned) == 2
    for mode, warning in zip(("run", "start"), warned, strict=True):
        message = str(warning.message)
        assert f"'{program.name}'" in message and f"'abandoned-{mode}'" in message and name in message
        assert "await" in message
        assert (warning.filename, warning.lineno) == (__file__, inspect.getsourcelines(program.function)[1])


def test_dropped_tasks_are_logged_where_warnings_are_errors(caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", StepfastWarning)
        asyncio.run(run(abandons_task, "logged"))
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(messages) == 2 and all("'the audit' (runs_audit)" in message for message in messages)


@pytest.mark.parametrize("program", [handles_all_tasks, fails_beside_task], ids=lambda it: it.name)
def test_handled_tasks_are_not_named(
    program: Workflow[[int], object], caplog: pytest.LogCaptureFixture
) -> None:
    # a warning would become an error, which the engine would log
    asyncio.run(run(program, "handled"))
    assert [record for record in caplog.records if "dropped" in record.getMessage()] == []
