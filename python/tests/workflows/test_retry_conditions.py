"""Who tells whether an exception is worth another attempt, and what becomes of it when that goes wrong."""

import re
from typing import Any

import pytest

from stepfast import Engine, step, workflow

attempts: list[int] = []


def matches(error: Exception) -> Any:
    """Tells by something that is no bool."""
    return re.search("busy", str(error))


def breaks(error: Exception) -> bool:
    raise KeyError("no such list")


@step(retries=2, backoff=0, retry_if=matches)
def is_busy(how: str) -> str:
    attempts.append(1)
    raise ConnectionError(how)


@step(retries=2, backoff=0, retry_if=breaks)
def is_asked_about(how: str) -> str:
    attempts.append(1)
    raise ConnectionError(how)


@workflow
def asks_the_bank(how: str) -> str:
    return is_busy(how)


@workflow
def asks_the_bank_in_vain(how: str) -> str:
    try:
        return is_asked_about(how)
    except KeyError as error:
        return f"{error}, of {error.__cause__!r}"


@workflow
def asks_the_bank_and_fails(how: str) -> str:
    return is_asked_about(how)


@pytest.mark.parametrize(("how", "times"), [("busy", 3), ("gone", 1)])
def test_what_is_true_enough_counts(how: str, times: int, url: str) -> None:
    attempts.clear()
    with Engine(url) as engine, pytest.raises(ConnectionError, match=how):
        engine.run(asks_the_bank, how)
    assert len(attempts) == times


def test_one_that_raises_fails_the_step(url: str) -> None:
    attempts.clear()
    with Engine(url) as engine:
        assert engine.run(asks_the_bank_in_vain, "busy") == "'no such list', of ConnectionError('busy')"
        handle = engine.start(asks_the_bank_and_fails.options(workflow_id="asks"), "busy")
        with pytest.raises(KeyError, match="no such list"):
            handle.result()
        assert [checkpoint.kind for checkpoint in engine.show("asks").checkpoints] == ["failed"]
    assert len(attempts) == 2
