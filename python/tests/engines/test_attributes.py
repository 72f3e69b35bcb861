"""Filters by attributes and queue, and the bulk cancels and resumes of matching executions."""

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

ACME_ATTRIBUTES = {"customer": "acme"}
is_healthy = threading.Event()


@workflow
def return_number(x: int) -> int:
    return x


@workflow
def run_child_twice(x: int) -> int:
    placed = return_number.options(attributes={"of": "child", "x": str(x)})
    return placed(x) + placed.start(x).result()


@step(retries=1, backoff=0.0)
def fail_until_healthy(x: int) -> int:
    if not is_healthy.is_set():
        raise ValueError("down")
    return x


@workflow
def run_flaky_step(x: int) -> int:
    return fail_until_healthy(x)


def test_lists_find_executions_by_attributes_and_queue(url: str) -> None:
    with Engine(url, queues=[Queue("mails")]) as engine:
        engine.run(return_number.options(workflow_id="run", attributes=ACME_ATTRIBUTES), 1)
        placed = return_number.options(
            workflow_id="both", attributes={**ACME_ATTRIBUTES, "region": "eu"}, queue="mails"
        )
        engine.start(placed, 2).result(HANG_TIMEOUT)
        batch = engine.start_many(return_number.options(attributes={"batch": "7"}), [(n,) for n in range(3)])
        assert [handle.result(HANG_TIMEOUT) for handle in batch] == [0, 1, 2]
        engine.run(run_child_twice, 5)
        engine.run(return_number, 3)

        assert [it.workflow_id for it in engine.list(attributes=ACME_ATTRIBUTES)] == ["both", "run"]
        (found,) = engine.list(attributes={"region": "eu", **ACME_ATTRIBUTES})
        assert found.attributes == {"region": "eu", **ACME_ATTRIBUTES}
        assert engine.show("run").execution.attributes == ACME_ATTRIBUTES
        assert [it.workflow_id for it in engine.list(attributes=ACME_ATTRIBUTES, queue="mails")] == ["both"]
        assert [it.workflow_id for it in engine.list(attributes=ACME_ATTRIBUTES, queue="default")] == ["run"]
        assert engine.count(attributes={"batch": "7"}) == 3
        assert engine.count(attributes={"of": "child", "x": "5"}, workflow=return_number) == 2
        assert engine.count(attributes={"customer": "beta"}) == 0
        assert engine.count(attributes={}) == engine.count()
        first, second = (engine.list(attributes={"batch": "7"}, limit=2)[k].workflow_id for k in (0, 1))
        (last,) = engine.list(attributes={"batch": "7"}, limit=2, after=second)
        assert len({first, second, last.workflow_id}) == 3


def test_executions_are_found_by_values_of_an_attribute(url: str) -> None:
    with Engine(url) as engine:
        for n in range(6):
            placed = return_number.options(workflow_id=f"n{n}", attributes={"customer": str(n % 2)})
            engine.run(placed, n)
        found = engine.find("customer", (str(n) for n in [1, 7, 0, 1]), limit=2)
        ids = [[it.execution.workflow_id for it in of_value] for of_value in found]
        assert ids == [["n5", "n3"], [], ["n4", "n2"], ["n5", "n3"]]
        assert [it.output for it in found[0]] == [5, 3]
        assert len(engine.find("customer", ["0"])[0]) == 3
        engine.run(return_customer_text.options(attributes={"customer": "large"}), "x" * 200_000)
        [[large]] = engine.find("customer", ["large"])
        assert large.output == "x" * 200_000
        assert engine.find("customer", []) == []


def test_executions_are_found_by_values_of_an_attribute_async(sqlite_url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(sqlite_url) as engine:
            with pytest.raises(ValueError, match="3"):
                await engine.run(fail_for_customer.options(attributes=ACME_ATTRIBUTES), 3)
            [[failed], none] = await engine.find("customer", ["acme", "acm"])
            assert isinstance(failed.error, ValueError) and failed.execution.status == "failed"
            assert none == []

    asyncio.run(main())


@pytest.mark.parametrize(
    ("attribute", "values", "limit", "message"),
    [
        ("a=b", ["x"], 1, "attribute is 'a=b', and must not contain '='"),
        ("", [], 1, "attribute"),
        (7, ["x"], 1, "attribute is 7"),
        ("a", ["x\0"], 1, "a value of the attribute"),
        ("a", ["x" * 1_025], 1, "a value of the attribute"),
        ("a", [None], 1, "a value of the attribute is None"),
        ("a", "x", 1, "values is the text 'x', and must be several"),
        ("a", ["x"], 0, "limit is 0"),
        ("a", ["x"], True, "limit is True"),
    ],
)
def test_invalid_searches_by_attributes_are_refused(
    sqlite_url: str, attribute: Any, values: Any, limit: Any, message: str
) -> None:
    with Engine(sqlite_url) as engine, pytest.raises(InvalidArgument) as refused:
        engine.find(attribute, values, limit=limit)
    assert message in str(refused.value)


@workflow
def return_customer_text(text: str) -> str:
    return text


@workflow
async def fail_for_customer(x: int) -> int:
    raise ValueError(x)


def test_resume_all_continues_failed_executions_of_queue(url: str) -> None:
    is_healthy.clear()
    with Engine(url, queues=[Queue("mails", concurrency=3)]) as engine:
        failed = engine.start_many(run_flaky_step.options(queue="mails"), [(n,) for n in range(20)])
        other = engine.start(run_flaky_step, 99)
        for handle in (*failed, other):
            with pytest.raises(ValueError, match="down"):
                handle.result(HANG_TIMEOUT)
        is_healthy.set()
        assert engine.count(queue="mails", status="failed") == 20
        assert engine.resume_all(queue="mails", status="failed") == BulkResult(20, 0, 0)
        assert [engine.get(it.workflow_id).result(HANG_TIMEOUT) for it in failed] == list(range(20))
        assert engine.count(status="failed") == 1
        assert other.status() == "failed"


def test_cancel_all_cancels_matching_executions(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url, queues=[Queue("mails")]) as engine:
            await engine.pause_queue("mails")
            acme = return_number.options(queue="mails", attributes=ACME_ATTRIBUTES)
            handles = [await engine.start(acme, n) for n in range(5)]
            other = await engine.start(return_number.options(queue="mails"), 7)
            assert await engine.cancel_all(attributes=ACME_ATTRIBUTES) == BulkResult(5, 0, 0)
            for handle in handles:
                with pytest.raises(WorkflowCancelled):
                    await handle.result()
            assert await engine.cancel_all(attributes=ACME_ATTRIBUTES) == BulkResult(0, 0, 0)
            assert await engine.count(status=["queued", "cancelled"]) == 6
            assert await engine.resume_all(status="cancelled", attributes=ACME_ATTRIBUTES) == BulkResult(
                5, 0, 0
            )
            await engine.resume_queue("mails")
            assert await other.result() == 7
            again = [await engine.get(handle.workflow_id) for handle in handles]
            assert [await handle.result() for handle in again] == list(range(5))

    asyncio.run(main())


def test_invalid_attributes_are_refused(sqlite_url: str) -> None:
    oversized = {str(n): "x" for n in range(65)}
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
        (oversized, "65 names, and an execution may have at most 64"),
    ]
    with Engine(sqlite_url, queues=[Queue("mails")]) as engine:
        for invalid, message in cases:
            with pytest.raises(InvalidArgument, match=message):
                return_number.options(attributes=invalid)
        with pytest.raises(InvalidArgument, match="debounce does not go with attributes"):
            return_number.options(queue="mails", debounce="x", delay=1, attributes=ACME_ATTRIBUTES)
        with pytest.raises(InvalidArgument, match="must be a dict of texts"):
            engine.list(attributes=["a"])  # type: ignore[arg-type]


def test_invalid_filters_are_refused(sqlite_url: str) -> None:
    with Engine(sqlite_url) as engine:
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


def test_program_lists_and_resumes_by_attributes(sqlite_url: str, program: pathlib.Path) -> None:
    is_healthy.clear()

    def run_json_program(*arguments: str) -> Any:
        """Runs `stepfast workflow` and returns its decoded output."""
        command = [program, "workflow", *arguments, "--store", sqlite_url, "--json"]
        process = subprocess.run(command, check=True, capture_output=True, text=True, timeout=HANG_TIMEOUT)
        return json.loads(process.stdout)

    with Engine(sqlite_url, queues=[Queue("mails")]) as engine:
        placed = run_flaky_step.options(queue="mails", attributes=ACME_ATTRIBUTES)
        handles = [engine.start(placed, n) for n in range(3)]
        for handle in handles:
            with pytest.raises((ValueError, WorkflowFailed)):
                handle.result(HANG_TIMEOUT)
        is_healthy.set()
        listed = run_json_program("list", "--queue", "mails", "--attribute", "customer=acme")["executions"]
        assert [row["attributes"] for row in listed] == [ACME_ATTRIBUTES] * 3
        assert run_json_program("list", "--count", "--attribute", "customer=beta") == {"count": 0}
        resumed = run_json_program("resume", "--all", "--queue", "mails", "--status", "failed")
        assert resumed == {"done": 3, "pending": 0, "not_applicable": 0}
        assert [engine.get(it.workflow_id).result(HANG_TIMEOUT) for it in handles] == [0, 1, 2]
