"""Retry conditions: truthy results, and conditions that raise."""

import re
from typing import Any

import pytest

from stepfast import Engine, step, workflow

attempt_errors: list[str] = []


def match_busy(error: Exception) -> Any:
    """Returns a truthy value that is no bool for a busy error."""
    return re.search("busy", str(error))


def raise_key_error(error: Exception) -> bool:
    raise KeyError("no such list")


@step(retries=2, backoff=0, retry_if=match_busy)
def fail_with_condition(message: str) -> str:
    attempt_errors.append(message)
    raise ConnectionError(message)


@step(retries=2, backoff=0, retry_if=raise_key_error)
def fail_with_raising_condition(message: str) -> str:
    attempt_errors.append(message)
    raise ConnectionError(message)


@workflow
def fails_with_condition(message: str) -> str:
    return fail_with_condition(message)


@workflow
def catches_error_of_condition(message: str) -> str:
    try:
        return fail_with_raising_condition(message)
    except KeyError as error:
        return f"{error}, of {error.__cause__!r}"


@workflow
def fails_by_condition(message: str) -> str:
    return fail_with_raising_condition(message)


@pytest.mark.parametrize(("message", "attempt_count"), [("busy", 3), ("gone", 1)])
def test_truthy_condition_permits_retry(message: str, attempt_count: int, url: str) -> None:
    attempt_errors.clear()
    with Engine(url) as engine, pytest.raises(ConnectionError, match=message):
        engine.run(fails_with_condition, message)
    assert len(attempt_errors) == attempt_count


def test_raising_condition_fails_its_step(url: str) -> None:
    attempt_errors.clear()
    with Engine(url) as engine:
        assert engine.run(catches_error_of_condition, "busy") == "'no such list', of ConnectionError('busy')"
        handle = engine.start(fails_by_condition.options(workflow_id="failed"), "busy")
        with pytest.raises(KeyError, match="no such list"):
            handle.result()
        assert [checkpoint.kind for checkpoint in engine.show("failed").checkpoints] == ["failed"]
    assert len(attempt_errors) == 2
