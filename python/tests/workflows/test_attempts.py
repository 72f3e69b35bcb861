"""Attempts of steps: their numbers, and what is logged of those that fail."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest

from stepfast import AsyncEngine, Engine, InvalidArgument, current, current_or_none, sleep, step, workflow


def fail_twice() -> list[int | None]:
    here = current()
    assert here.attempt is not None
    if here.attempt < 3:
        raise ConnectionError(f"attempt {here.attempt}")
    return [here.attempt]


numbered = step(retries=3, backoff=0.001, name="numbered")(fail_twice)
numbered_in_process = step(retries=3, backoff=0.001, name="numbered in process", process=True)(fail_twice)


@step(retries=3, backoff=0.001, timeout=60)
async def numbered_async() -> list[int | None]:
    await asyncio.sleep(0)
    return fail_twice()


@step(retries=1, backoff=0, timeout=60)
def numbered_in_thread() -> int | None:
    return current().attempt


@workflow
def numbers_attempts() -> list[int | None]:
    assert current().attempt is None
    return [*numbered(), *numbered(), numbered_in_thread()]


@workflow
def numbers_attempts_in_process() -> list[int | None]:
    return numbered_in_process()


@workflow
async def numbers_attempts_async() -> list[int | None]:
    return [*await numbered_async(), *await numbered.in_thread(), await numbered_in_thread.in_thread()]


@step(retries=1, backoff=0.25, jitter=0)
def hopeless() -> None:
    raise ConnectionError("no")


@step(retries=1, backoff=0.25, jitter=0)
async def hopeless_async() -> None:
    raise ConnectionError("no")


@step(retries=5, retry_on=TimeoutError)
def hopeless_at_once() -> None:
    raise ConnectionError("no")


@workflow
def gives_up(which: str) -> str:
    try:
        (hopeless if which == "retried" else hopeless_at_once)()
    except ConnectionError:
        return "handled"
    return ""


@workflow
async def gives_up_async() -> None:
    await hopeless_async()


@workflow
def parent_of_failing_child() -> str:
    try:
        failing_child()
    except LookupError:
        return "handled"
    return ""


@workflow
def failing_child() -> None:
    raise LookupError("the child")


def test_body_knows_the_number_of_its_attempt(url: str) -> None:
    with Engine(url) as engine:
        assert engine.run(numbers_attempts) == [3, 3, 1]
        assert engine.start(numbers_attempts).result() == [3, 3, 1]
        assert engine.run(numbers_attempts_in_process) == [3]

    async def main() -> None:
        async with AsyncEngine(url) as engine:
            assert await engine.run(numbers_attempts_async) == [3, 3, 1]
            assert await (await engine.start(numbers_attempts_async)) == [3, 3, 1]

    asyncio.run(main())


FIRST_RUN: list[int] = []


@step(retries=2, backoff=0.4, jitter=0)
def fails_once() -> int | None:
    attempt = current().attempt
    if attempt == 1:
        FIRST_RUN.append(1)
        raise ConnectionError
    return attempt


@workflow
def fails_once_and_waits() -> int | None:
    return fails_once()


def test_attempts_are_numbered_on_after_a_restart(url: str) -> None:
    FIRST_RUN.clear()
    with Engine(url) as engine:
        handle = engine.start(fails_once_and_waits)
        while not engine.show(handle.workflow_id).attempts:
            pass
    with Engine(url) as engine:
        assert engine.get(handle.workflow_id).result(timeout=60) == 2
    assert FIRST_RUN == [1]


def test_current_raises_outside_of_executions() -> None:
    assert current_or_none() is None
    with pytest.raises(InvalidArgument, match=r"current\(\) is called outside of executions"):
        current()


def records_of(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "stepfast"]


def lines_of(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    named = re.compile(r"workflow_id '[^']*'")
    return [
        (record.levelname, named.sub("workflow_id …", record.getMessage())) for record in records_of(caplog)
    ]


def test_failed_attempts_are_logged_with_number_and_pause(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stepfast")
    with Engine(url) as engine:
        assert engine.run(gives_up, "retried") == "handled"
        whose = "(workflow 'gives_up', workflow_id …)"
        assert lines_of(caplog) == [
            ("INFO", f"attempt 1 of step 'hopeless' has failed; the next one begins in 0.25 s {whose}"),
            ("INFO", f"attempt 2 of step 'hopeless' has failed; no further one follows {whose}"),
        ]
        first = records_of(caplog)[0]
        assert first.exc_info is not None and isinstance(first.exc_info[1], ConnectionError)
        assert vars(first)["stepfast_step"] == "hopeless" and vars(first)["stepfast_workflow"] == "gives_up"
        caplog.clear()
        assert engine.run(gives_up, "at once") == "handled"
        assert lines_of(caplog) == [
            ("INFO", f"attempt 1 of step 'hopeless_at_once' has failed; no further one follows {whose}"),
        ]


def test_failed_attempts_in_processes_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stepfast")
    with Engine("memory:") as engine:
        engine.run(numbers_attempts_in_process)
    lines = [text for _, text in lines_of(caplog)]
    assert [text.split(" has failed")[0] for text in lines] == [
        f"attempt {n} of step 'numbered in process'" for n in (1, 2)
    ]
    assert all(vars(record)["stepfast_step"] == "numbered in process" for record in records_of(caplog))


def test_failed_workflows_are_logged_as_warnings(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            with pytest.raises(ConnectionError):
                await engine.run(gives_up_async)
            with pytest.raises(ConnectionError):
                await (await engine.start(gives_up_async))

    asyncio.run(main())
    failed = ("WARNING", "workflow 'gives_up_async' has failed (workflow_id …)")
    assert lines_of(caplog) == [failed, failed]
    for record in records_of(caplog):
        assert vars(record)["stepfast_workflow"] == "gives_up_async" and record.exc_info is not None
    caplog.clear()
    with Engine(url) as engine:
        for call in (engine.run, lambda program: engine.start(program).result()):
            assert call(parent_of_failing_child) == "handled"
            with pytest.raises(LookupError):
                call(failing_child)
    child = ("WARNING", "workflow 'failing_child' has failed (workflow_id …)")
    assert lines_of(caplog) == [child] * 4


@workflow
def converts_its_end() -> None:
    try:
        sleep(3600)
    except BaseException as error:
        raise ValueError("not a failure of its own") from error


def test_unwinding_code_is_not_logged(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with Engine(url, suspend_after=0.01) as engine:
        handle = engine.start(converts_its_end)
        while engine.show(handle.workflow_id).execution.wake_at is None:
            pass
        handle.cancel()
    assert lines_of(caplog) == []
