"""Statuses of executions: an enumeration whose members equal their texts."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from stepfast import AsyncEngine, Checkpoint, Engine, Execution, InvalidArgument, Status, workflow
from stepfast.values import decode, encode


@workflow
def double_or_fail(n: int) -> int:
    if n < 0:
        raise ValueError(n)
    return 2 * n


@workflow
async def double_with_status_async(n: int) -> int:
    return 2 * n


def test_status_equals_its_text() -> None:
    assert [str(each) for each in Status] == [
        "scheduled",
        "queued",
        "running",
        "waiting",
        "completed",
        "failed",
        "cancelled",
    ]
    for each in Status:
        assert each == each.value and f"{each}" == each.value and Status(each.value) is each
        assert decode(encode([each]))[0] is each


def test_engines_return_and_accept_statuses(url: str) -> None:
    with Engine(url) as engine:
        completed = engine.start(double_or_fail, 1)
        completed.result()
        scheduled = engine.start(double_or_fail.options(delay=timedelta(hours=1)), 1)
        with pytest.raises(ValueError, match="-1"):
            engine.run(double_or_fail, -1)
        assert (completed.status(), scheduled.status()) == (Status.COMPLETED, Status.SCHEDULED)
        assert type(completed.status()) is Status and completed.status() == "completed"
        assert {row.status for row in engine.list()} == {Status.COMPLETED, Status.SCHEDULED, Status.FAILED}
        assert all(type(row.status) is Status for row in engine.list())
        assert engine.show(scheduled.workflow_id).execution.status is Status.SCHEDULED
        for condition in (Status.FAILED, "failed", [Status.FAILED], ["failed"]):
            status_filter: Any = condition
            assert engine.count(status=status_filter) == 1
        assert engine.count(status=[Status.FAILED, "completed"]) == 2
        with pytest.raises(InvalidArgument, match="complete"):
            engine.count(status="complete")  # type: ignore[arg-type]

    async def main() -> None:
        async with AsyncEngine(url) as engine:
            handle = await engine.start(double_with_status_async, 1)
            await handle
            status = await handle.status()
            assert status is Status.COMPLETED

    asyncio.run(main())


def test_records_of_earlier_versions_are_decoded(url: str) -> None:
    with Engine(url) as engine:
        handle = engine.start(double_or_fail, 1)
        handle.result()
        execution = engine.show(handle.workflow_id).execution
    old_fields = {**{field.name: getattr(execution, field.name) for field in dataclasses.fields(execution)}}
    assert Execution.__stepfast_upgrade__({**old_fields, "status": "completed"}) == old_fields
    for seconds, timeout in ((90.0, timedelta(seconds=90)), (1e300, timedelta.max), (None, None)):
        upgraded = Execution.__stepfast_upgrade__({**old_fields, "run_timeout": seconds})
        assert upgraded == {**old_fields, "run_timeout": timeout}
    for timeout in (None, timedelta(seconds=90), timedelta.max):
        changed = dataclasses.replace(execution, run_timeout=timeout)
        assert decode(encode(changed)) == changed
    checkpoint = Checkpoint("1", "charge", "step", 5, execution.created_at, timedelta(seconds=1))
    assert decode(encode(checkpoint)) == checkpoint
    fields = {"path": "1", "took": timedelta(seconds=1)}
    assert Checkpoint.__stepfast_upgrade__(fields) == {"path": "1", "duration": timedelta(seconds=1)}
