"""Attempts of steps: their numbers, and the log records of failed ones."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest

from stepfast import AsyncEngine, Engine, InvalidArgument, current, current_or_none, sleep, step, workflow


def return_third_attempt() -> list[int | None]:
    attempt = current().attempt
    assert attempt is not None
    if attempt < 3:
        raise ConnectionError(f"attempt {attempt}")
    return [attempt]


fail_twice = step(retries=3, backoff=0.001, name="fail_twice")(return_third_attempt)
fail_twice_in_process = step(retries=3, backoff=0.001, name="fail_twice in process", process=True)(
    return_third_attempt
)


@step(retries=3, backoff=0.001, timeout=60)
async def fail_twice_async() -> list[int | None]:
    await asyncio.sleep(0)
    return return_third_attempt()


@step(retries=1, backoff=0, timeout=60)
def return_attempt() -> int | None:
    return current().attempt


@workflow
def returns_attempts() -> list[int | None]:
    assert current().attempt is None
    return [*fail_twice(), *fail_twice(), return_attempt()]


@workflow
def returns_attempts_of_process() -> list[int | None]:
    return fail_twice_in_process()


@workflow
async def returns_attempts_async() -> list[int | None]:
    return [*await fail_twice_async(), *await fail_twice.in_thread(), await return_attempt.in_thread()]


@step(retries=1, backoff=0.25, jitter=0)
def fail_twice_for_good() -> None:
    raise ConnectionError("no")


@step(retries=1, backoff=0.25, jitter=0)
async def fail_always_async() -> None:
    raise ConnectionError("no")


@step(retries=5, retry_on=TimeoutError)
def fail_without_retry() -> None:
    raise ConnectionError("no")


@workflow
def catches_failure(error_handling: str) -> str:
    try:
        (fail_twice_for_good if error_handling == "retried" else fail_without_retry)()
    except ConnectionError:
        return "handled"
    return ""


@workflow
async def fails_async() -> None:
    await fail_always_async()


@workflow
def catches_failure_of_child() -> str:
    try:
        failing_child()
    except LookupError:
        return "handled"
    return ""


@workflow
def failing_child() -> None:
    raise LookupError("the child")


def test_body_reads_number_of_its_attempt(url: str) -> None:
    with Engine(url) as engine:
        assert engine.run(returns_attempts) == [3, 3, 1]
        assert engine.start(returns_attempts).result() == [3, 3, 1]
        assert engine.run(returns_attempts_of_process) == [3]

    async def main() -> None:
        async with AsyncEngine(url) as engine:
            assert await engine.run(returns_attempts_async) == [3, 3, 1]
            assert await (await engine.start(returns_attempts_async)) == [3, 3, 1]

    asyncio.run(main())


FAILED_ATTEMPTS: list[int] = []


@step(retries=2, backoff=0.4, jitter=0)
def fail_once() -> int | None:
    attempt = current().attempt
    if attempt == 1:
        FAILED_ATTEMPTS.append(1)
        raise ConnectionError
    return attempt


@workflow
def fails_once() -> int | None:
    return fail_once()


def test_numbers_of_attempts_continue_after_restart(url: str) -> None:
    FAILED_ATTEMPTS.clear()
    with Engine(url) as engine:
        handle = engine.start(fails_once)
        while not engine.show(handle.workflow_id).attempts:
            pass
    with Engine(url) as engine:
        assert engine.get(handle.workflow_id).result(timeout=60) == 2
    assert FAILED_ATTEMPTS == [1]


def test_current_raises_outside_of_executions() -> None:
    assert current_or_none() is None
    with pytest.raises(InvalidArgument, match=r"current\(\) is called outside of executions"):
        current()


def package_records(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "stepfast"]


def package_lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    workflow_id = re.compile(r"workflow_id '[^']*'")
    return [
        (record.levelname, workflow_id.sub("workflow_id …", record.getMessage()))
        for record in package_records(caplog)
    ]


def test_failed_attempts_are_logged_with_number_and_pause(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stepfast")
    with Engine(url) as engine:
        assert engine.run(catches_failure, "retried") == "handled"
        suffix = "(workflow 'catches_failure', workflow_id …)"
        assert package_lines(caplog) == [
            (
                "INFO",
                f"attempt 1 of step 'fail_twice_for_good' has failed; the next one begins in 0.25 s {suffix}",
            ),
            ("INFO", f"attempt 2 of step 'fail_twice_for_good' has failed; no further one follows {suffix}"),
        ]
        first = package_records(caplog)[0]
        assert first.exc_info is not None and isinstance(first.exc_info[1], ConnectionError)
        assert (
            vars(first)["stepfast_step"] == "fail_twice_for_good"
            and vars(first)["stepfast_workflow"] == "catches_failure"
        )
        caplog.clear()
        assert engine.run(catches_failure, "at once") == "handled"
        assert package_lines(caplog) == [
            ("INFO", f"attempt 1 of step 'fail_without_retry' has failed; no further one follows {suffix}"),
        ]


def test_failed_attempts_in_processes_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stepfast")
    with Engine("memory:") as engine:
        engine.run(returns_attempts_of_process)
    lines = [text for _, text in package_lines(caplog)]
    assert [text.split(" has failed")[0] for text in lines] == [
        f"attempt {n} of step 'fail_twice in process'" for n in (1, 2)
    ]
    assert all(vars(record)["stepfast_step"] == "fail_twice in process" for record in package_records(caplog))


def test_failed_workflows_are_logged_as_warnings(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            with pytest.raises(ConnectionError):
                await engine.run(fails_async)
            with pytest.raises(ConnectionError):
                await (await engine.start(fails_async))

    asyncio.run(main())
    failed = ("WARNING", "workflow 'fails_async' has failed (workflow_id …)")
    assert package_lines(caplog) == [failed, failed]
    for record in package_records(caplog):
        assert vars(record)["stepfast_workflow"] == "fails_async" and record.exc_info is not None
    caplog.clear()
    with Engine(url) as engine:
        for call in (engine.run, lambda program: engine.start(program).result()):
            assert call(catches_failure_of_child) == "handled"
            with pytest.raises(LookupError):
                call(failing_child)
    child = ("WARNING", "workflow 'failing_child' has failed (workflow_id …)")
    assert package_lines(caplog) == [child] * 4


@workflow
def raises_while_unwinding() -> None:
    try:
        sleep(3600)
    except BaseException as error:
        raise ValueError("raised while the code unwinds") from error


def test_unwinding_code_is_not_logged(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with Engine(url, suspend_after=0.01) as engine:
        handle = engine.start(raises_while_unwinding)
        while engine.show(handle.workflow_id).execution.wake_at is None:
            pass
        handle.cancel()
    assert package_lines(caplog) == []
