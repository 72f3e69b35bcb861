"""Tasks that a workflow leaves behind when it returns: they are dropped, with a warning."""

from __future__ import annotations

import asyncio
import inspect
import logging
import warnings

import pytest

import stepfast
from stepfast import AsyncEngine, StepfastWarning, Workflow, step, workflow

STARTED: set[asyncio.Future[object]] = set()


@step
async def audit_left(n: int) -> None:
    await asyncio.Event().wait()


@step
async def quick_left(n: int) -> int:
    return n


async def audits(n: int) -> None:
    await audit_left(n)


async def breaks_left() -> None:
    raise LookupError("broken")


@workflow
async def leaves_step(n: int) -> int:
    STARTED.add(asyncio.ensure_future(audit_left(n)))
    return await quick_left(n)


@workflow
async def leaves_task(n: int) -> int:
    STARTED.add(asyncio.create_task(audits(n), name="the audit"))
    return await quick_left(n)


@workflow
async def cancels_and_awaits(n: int) -> int:
    cancelled = asyncio.create_task(audits(n))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(quick_left(n))
    async with stepfast.timeout(60):
        await quick_left(n)
    await stepfast.gather(quick_left(n), quick_left(n))
    cancelled.cancel()
    return task.result()


@workflow
async def fails_beside(n: int) -> int:
    await asyncio.gather(audits(n), breaks_left())
    return n


async def run(program: Workflow[[int], object], workflow_id: str) -> None:
    async with AsyncEngine("memory:") as engine:
        for way in ("run", "start"):
            try:
                options = program.options(workflow_id=f"{workflow_id}-{way}")
                if way == "run":
                    await engine.run(options, 7)
                else:
                    await (await engine.start(options, 7)).result()
            except LookupError:
                assert program is fails_beside


@pytest.mark.parametrize(
    ("program", "name"), [(leaves_step, "position"), (leaves_task, "'the audit' (audits)")]
)
def test_warning_names_dropped_tasks(program: Workflow[[int], object], name: str) -> None:
    with pytest.warns(StepfastWarning) as warned:
        asyncio.run(run(program, "left"))
    assert len(warned) == 2
    for way, warning in zip(("run", "start"), warned, strict=True):
        message = str(warning.message)
        assert f"'{program.name}'" in message and f"'left-{way}'" in message and name in message
        assert "await" in message
        assert (warning.filename, warning.lineno) == (__file__, inspect.getsourcelines(program.function)[1])


def test_dropped_tasks_are_logged_where_warnings_are_errors(caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", StepfastWarning)
        asyncio.run(run(leaves_task, "logged"))
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(messages) == 2 and all("'the audit' (audits)" in message for message in messages)


@pytest.mark.parametrize("program", [cancels_and_awaits, fails_beside], ids=lambda it: it.name)
def test_what_the_code_has_dealt_with_is_not_named(
    program: Workflow[[int], object], caplog: pytest.LogCaptureFixture
) -> None:
    # a warning would be an error, and logged
    asyncio.run(run(program, "dealt"))
    assert [record for record in caplog.records if "dropped" in record.getMessage()] == []
