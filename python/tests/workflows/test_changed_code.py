"""Changes of code between a crash and the replay: parked executions, their reasons, and their resumption."""

import asyncio
import os
import pathlib
import signal
import subprocess
import sys

import changed_code_program
import pytest

from stepfast import AsyncEngine, Engine, WorkflowParked

PROGRAM = pathlib.Path(changed_code_program.__file__)

#: The parts of the message for each change, beside the position.
EXPECTED_PARTS = {
    "replaced": ['the record has step "charge"', 'but the code calls step "refund"'],
    "renamed": ['the record has step "charge"', 'but the code calls step "charge_card"'],
    "swapped": [
        'the record has step "charge"',
        'but the code calls step "label"',
        'the nearest recorded "label" is at position 2',
    ],
    "removed": ['the record has step "charge"', 'but the code calls step "label"'],
    "added before": [
        'the record has step "charge"',
        'but the code calls step "refund"',
    ],
    "other arguments": ['step "charge" was recorded with other arguments'],
    "other kind": ['the record has step "charge"', 'but the code calls sleep "sleep"'],
    "ends early": ['the record continues with step "label" at position 2', "but the code returns before it"],
    "gathered": [
        'the record continues with step "charge" at position 1',
        'the code waits for step "charge"',
        '"label"',
    ],
    "in a group": [
        'the record continues with step "charge" at position 1',
        'the code waits for step "charge"',
        '"label"',
    ],
    "in a task": [
        'the record continues with step "charge" at position 1',
        'the code waits for step "charge"',
    ],
    "not awaited": [
        'the record continues with step "charge" at position 1',
        "does not call it",
        'the code waits for step "label"',
    ],
}
ASYNC_ONLY = {"gathered", "in a group", "in a task", "not awaited"}


def run_killed_program(kind: str, url: str) -> None:
    """Starts the execution in a process, which kills itself in the last step."""
    process = subprocess.run(
        [sys.executable, str(PROGRAM), kind, url],
        env={**os.environ, "KILL": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == -signal.SIGKILL, process.stderr


def assert_parked_message(change: str, message: str) -> None:
    assert "SF-0023" in message and "position" in message, message
    assert message.startswith('execution "order-7" is parked: ') and "workflow resume order-7" in message
    for part in EXPECTED_PARTS[change]:
        assert part in message, message


OUTPUT_OF_FIRST_CODE = ["charged 7", "label 7", "shipped 7"]


def test_execution_with_changed_code_parks_with_reason(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run_killed_program("sync", url)
    changes = [change for change in EXPECTED_PARTS if change not in ASYNC_ONLY]
    # the engine continues the execution as soon as the engine is open
    monkeypatch.setattr(changed_code_program, "CODE", changes[0])
    with Engine(url) as engine:
        handle = None
        for change in changes:
            monkeypatch.setattr(changed_code_program, "CODE", change)
            if handle is not None:
                # the execution stays parked until its resumption
                assert engine.resume("order-7")
            handle = engine.start(changed_code_program.sync_order.options(workflow_id="order-7"), 7)
            with pytest.raises(WorkflowParked) as parked:
                handle.result()
            assert_parked_message(change, str(parked.value))
        # no change of code has changed the record
        monkeypatch.setattr(changed_code_program, "CODE", "first")
        assert handle is not None and engine.resume("order-7")
        assert handle.result() == OUTPUT_OF_FIRST_CODE


def test_async_execution_with_changed_code_parks_with_reason(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_killed_program("async", url)
    monkeypatch.setattr(changed_code_program, "CODE", next(iter(EXPECTED_PARTS)))

    async def main() -> None:
        async with AsyncEngine(url) as engine:
            handle = None
            for change in EXPECTED_PARTS:
                monkeypatch.setattr(changed_code_program, "CODE", change)
                if handle is not None:
                    assert await engine.resume("order-7")
                handle = await engine.start(
                    changed_code_program.async_order.options(workflow_id="order-7"), 7
                )
                with pytest.raises(WorkflowParked) as parked:
                    await handle
                assert_parked_message(change, str(parked.value))
            monkeypatch.setattr(changed_code_program, "CODE", "first")
            assert handle is not None and await engine.resume("order-7")
            assert await handle == OUTPUT_OF_FIRST_CODE

    asyncio.run(main())


def test_next_engine_resumes_parked_execution(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run_killed_program("sync", url)
    monkeypatch.setattr(changed_code_program, "CODE", "renamed")
    with Engine(url) as engine, pytest.raises(WorkflowParked):
        engine.start(changed_code_program.sync_order.options(workflow_id="order-7"), 7).result()
    monkeypatch.setattr(changed_code_program, "CODE", "first")
    with Engine(url) as engine:
        handle = engine.get("order-7")
        with pytest.raises(WorkflowParked):
            handle.result()
        assert engine.resume("order-7") and handle.result() == OUTPUT_OF_FIRST_CODE
