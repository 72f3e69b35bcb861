"""Attributes and queues as filters, and acting on all that match."""

from __future__ import annotations

import asyncio
import json
import pathlib
import subprocess
import threading
from typing import Any

import pytest
from watched_process import HANG_TIMEOUT

from stepfast import (
    AsyncEngine,
    BulkResult,
    Engine,
    InvalidArgument,
    Queue,
    WorkflowCancelled,
    WorkflowFailed,
    step,
    workflow,
)

ACME = {"customer": "acme"}
healthy = threading.Event()


@workflow
def found_echo(x: int) -> int:
    return x


@workflow
def found_parent(x: int) -> int:
    placed = found_echo.options(attributes={"of": "child", "x": str(x)})
    return placed(x) + placed.start(x).result()


@step(retries=1, backoff=0.0)
def found_call(x: int) -> int:
    if not healthy.is_set():
        raise ValueError("down")
    return x


@workflow
def found_flaky(x: int) -> int:
    return found_call(x)


@pytest.fixture
def file(tmp_path: pathlib.Path) -> str:
    return f"sqlite:{tmp_path}/test.db"


def test_what_is_started_is_found(url: str) -> None:
    with Engine(url, queues=[Queue("mails")]) as engine:
        engine.run(found_echo.options(workflow_id="run", attributes=ACME), 1)
        both = found_echo.options(workflow_id="both", attributes={**ACME, "region": "eu"}, queue="mails")
        engine.start(both, 2).result(HANG_TIMEOUT)
        many = engine.start_many(found_echo.options(attributes={"batch": "7"}), [(n,) for n in range(3)])
        assert [handle.result(HANG_TIMEOUT) for handle in many] == [0, 1, 2]
        engine.run(found_parent, 5)
        engine.run(found_echo, 3)

        assert [it.workflow_id for it in engine.list(attributes=ACME)] == ["both", "run"]
        (only,) = engine.list(attributes={"region": "eu", **ACME})
        assert only.attributes == {"region": "eu", **ACME}
        assert engine.show("run").execution.attributes == ACME
        assert [it.workflow_id for it in engine.list(attributes=ACME, queue="mails")] == ["both"]
        assert [it.workflow_id for it in engine.list(attributes=ACME, queue="default")] == ["run"]
        assert engine.count(attributes={"batch": "7"}) == 3
        assert engine.count(attributes={"of": "child", "x": "5"}, workflow=found_echo) == 2
        assert engine.count(attributes={"customer": "beta"}) == 0
        assert engine.count(attributes={}) == engine.count()
        first, second = (engine.list(attributes={"batch": "7"}, limit=2)[k].workflow_id for k in (0, 1))
        (last,) = engine.list(attributes={"batch": "7"}, limit=2, after=second)
        assert len({first, second, last.workflow_id}) == 3


def test_what_has_failed_goes_on(url: str) -> None:
    healthy.clear()
    with Engine(url, queues=[Queue("mails", concurrency=3)]) as engine:
        failed = engine.start_many(found_flaky.options(queue="mails"), [(n,) for n in range(20)])
        other = engine.start(found_flaky, 99)
        for handle in (*failed, other):
            with pytest.raises(ValueError, match="down"):
                handle.result(HANG_TIMEOUT)
        healthy.set()
        assert engine.count(queue="mails", status="failed") == 20
        assert engine.resume_all(queue="mails", status="failed") == BulkResult(20, 0, 0)
        assert [engine.get(it.workflow_id).result(HANG_TIMEOUT) for it in failed] == list(range(20))
        assert engine.count(status="failed") == 1
        assert other.status() == "failed"


def test_all_that_match_are_cancelled(url: str) -> None:
    async def acts() -> None:
        async with AsyncEngine(url, queues=[Queue("mails")]) as engine:
            await engine.pause_queue("mails")
            acme = found_echo.options(queue="mails", attributes=ACME)
            handles = [await engine.start(acme, n) for n in range(5)]
            other = await engine.start(found_echo.options(queue="mails"), 7)
            assert await engine.cancel_all(attributes=ACME) == BulkResult(5, 0, 0)
            for handle in handles:
                with pytest.raises(WorkflowCancelled):
                    await handle.result()
            assert await engine.cancel_all(attributes=ACME) == BulkResult(0, 0, 0)
            assert await engine.count(status=["queued", "cancelled"]) == 6
            assert await engine.resume_all(status="cancelled", attributes=ACME) == BulkResult(5, 0, 0)
            await engine.resume_queue("mails")
            assert await other.result() == 7
            again = [await engine.get(handle.workflow_id) for handle in handles]
            assert [await handle.result() for handle in again] == list(range(5))

    asyncio.run(acts())


def test_attributes_that_cannot_be_are_refused(file: str) -> None:
    many = {str(n): "x" for n in range(65)}
    cases: list[tuple[Any, str]] = [
        ("customer=acme", "must be a dict of texts"),
        ({"customer": 5}, r"attributes\['customer'\] is 5"),
        ({5: "x"}, "a name in attributes is 5"),
        ({"": "x"}, "a name in attributes"),
        ({"a=b": "x"}, "must not contain '='"),
        ({"a": ""}, r"attributes\['a'\]"),
        ({"a": "x" * 1025}, "at most 1024"),
        ({"a" * 129: "x"}, "at most 128"),
        ({"a": "x\ny"}, r"attributes\['a'\]"),
        (many, "65 names, and an execution at most 64"),
    ]
    with Engine(file, queues=[Queue("mails")]) as engine:
        for given, says in cases:
            with pytest.raises(InvalidArgument, match=says):
                found_echo.options(attributes=given)
        with pytest.raises(InvalidArgument, match="debounce does not go with attributes"):
            found_echo.options(queue="mails", debounce="x", delay=1, attributes=ACME)
        with pytest.raises(InvalidArgument, match="must be a dict of texts"):
            engine.list(attributes=["a"])  # type: ignore[arg-type]


def test_filters_that_cannot_be_are_refused(file: str) -> None:
    with Engine(file) as engine:
        with pytest.raises(TypeError, match="'colour' is not a condition; the conditions are status, "):
            engine.list(colour="red")  # type: ignore[call-arg]
        with pytest.raises(InvalidArgument, match="status"):
            engine.count(status="ready")
        with pytest.raises(InvalidArgument, match="workflow is <built-in .*, and must be a workflow"):
            engine.count(workflow=print)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="give at least one condition"):
            engine.cancel_all()
        with pytest.raises(InvalidArgument, match="give at least one condition"):
            engine.cancel_all(queue=None, attributes={})
        with pytest.raises(InvalidArgument, match="resume_all needs the state of the executions"):
            engine.resume_all(queue="mails")


def test_the_program_finds_and_continues(file: str, program: pathlib.Path) -> None:
    healthy.clear()

    def told(*arguments: str) -> Any:
        command = [program, "workflow", *arguments, "--store", file, "--json"]
        said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=HANG_TIMEOUT)
        return json.loads(said.stdout)

    with Engine(file, queues=[Queue("mails")]) as engine:
        placed = found_flaky.options(queue="mails", attributes=ACME)
        handles = [engine.start(placed, n) for n in range(3)]
        for handle in handles:
            with pytest.raises((ValueError, WorkflowFailed)):
                handle.result(HANG_TIMEOUT)
        healthy.set()
        listed = told("list", "--queue", "mails", "--attribute", "customer=acme")["executions"]
        assert [row["attributes"] for row in listed] == [ACME] * 3
        assert told("list", "--count", "--attribute", "customer=beta") == {"count": 0}
        continued = told("resume", "--all", "--queue", "mails", "--status", "failed")
        assert continued == {"done": 3, "requested": 0, "declined": 0}
        assert [engine.get(it.workflow_id).result(HANG_TIMEOUT) for it in handles] == [0, 1, 2]
