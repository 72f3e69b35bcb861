"""Code that changes between a crash and the resumption: the execution is parked, and says why; with the code
put back it goes on where it was."""

import asyncio
import os
import pathlib
import signal
import subprocess
import sys

import changed_code_program
import pytest

from stepfast import AsyncEngine, Engine, WorkflowParked

CHANGED = pathlib.Path(changed_code_program.__file__)

#: What the message says for each change, beside the position.
SAID = {
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


def killed(kind: str, url: str) -> None:
    """The first run, by a process that is killed in the last step."""
    ended = subprocess.run(
        [sys.executable, str(CHANGED), kind, url],
        env={**os.environ, "KILL": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def check(change: str, message: str) -> None:
    assert "SF-0023" in message and "position" in message, message
    assert message.startswith('execution "order-7" is parked: ') and "workflow resume order-7" in message
    for part in SAID[change]:
        assert part in message, message


RESTORED = ["charged 7", "label 7", "shipped 7"]


def test_changed_code_is_parked_and_says_why(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    killed("sync", url)
    changes = [change for change in SAID if change not in ASYNC_ONLY]
    # the engine goes on with the execution as soon as it is open
    monkeypatch.setattr(changed_code_program, "CODE", changes[0])
    with Engine(url) as engine:
        handle = None
        for change in changes:
            monkeypatch.setattr(changed_code_program, "CODE", change)
            if handle is not None:
                # it stays as it is until somebody resumes it
                assert engine.resume("order-7")
            handle = engine.start(changed_code_program.sync_order.options(workflow_id="order-7"), 7)
            with pytest.raises(WorkflowParked) as parked:
                handle.result()
            check(change, str(parked.value))
        # all of them have left the record as it was
        monkeypatch.setattr(changed_code_program, "CODE", "first")
        assert handle is not None and engine.resume("order-7")
        assert handle.result() == RESTORED


def test_changed_async_code_is_parked_and_says_why(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    killed("async", url)
    monkeypatch.setattr(changed_code_program, "CODE", next(iter(SAID)))

    async def main() -> None:
        async with AsyncEngine(url) as engine:
            handle = None
            for change in SAID:
                monkeypatch.setattr(changed_code_program, "CODE", change)
                if handle is not None:
                    assert await engine.resume("order-7")
                handle = await engine.start(
                    changed_code_program.async_order.options(workflow_id="order-7"), 7
                )
                with pytest.raises(WorkflowParked) as parked:
                    await handle
                check(change, str(parked.value))
            monkeypatch.setattr(changed_code_program, "CODE", "first")
            assert handle is not None and await engine.resume("order-7")
            assert await handle == RESTORED

    asyncio.run(main())


def test_a_parked_execution_is_resumed_by_the_next_process(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    killed("sync", url)
    monkeypatch.setattr(changed_code_program, "CODE", "renamed")
    with Engine(url) as engine, pytest.raises(WorkflowParked):
        engine.start(changed_code_program.sync_order.options(workflow_id="order-7"), 7).result()
    monkeypatch.setattr(changed_code_program, "CODE", "first")
    with Engine(url) as engine:
        handle = engine.get("order-7")
        with pytest.raises(WorkflowParked):
            handle.result()
        assert engine.resume("order-7") and handle.result() == RESTORED
