"""The progress of a batch: as a bar in a terminal, as lines elsewhere."""

from __future__ import annotations

import asyncio
import io
import threading

import pytest
from rich.console import Console

from stepfast import AsyncEngine, BatchCounts, Engine, ResultTimeout, workflow
from stepfast._engine.batch import progress
from stepfast._engine.batch.progress import BatchProgress

may_end = threading.Event()


@workflow
def ends_when_allowed(n: int) -> int:
    may_end.wait(60)
    return n


@workflow
async def returns_number(n: int) -> int:
    return n


def test_wait_writes_lines_outside_of_a_terminal(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_PERIOD", 0.0)
    monkeypatch.setattr(progress, "MIN_PERIOD", 0.01)
    may_end.clear()
    with Engine(sqlite_url) as engine:
        batch = engine.submit_batch(ends_when_allowed, [(n,) for n in range(3)], batch_id="[red]photos")
        with pytest.raises(ResultTimeout, match="0.2 s"):
            batch.wait(0.2, progress=True)
        assert capsys.readouterr() == ("", "batch [red]photos: 0 of 3 items have ended\n")
        may_end.set()
        assert batch.wait(progress=True) == BatchCounts(3, 0, 0, 0, 3, 0, 0)
        assert capsys.readouterr().err.splitlines()[-1] == "batch [red]photos: 3 of 3 items have ended"


def test_async_wait_writes_lines_outside_of_a_terminal(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "MIN_PERIOD", 0.001)

    async def main() -> None:
        async with AsyncEngine(sqlite_url) as engine:
            batch = await engine.submit_batch(returns_number, [(n,) for n in range(3_000)], batch_id="b")
            assert await batch.wait(progress=True) == BatchCounts(3_000, 0, 0, 0, 3_000, 0, 0)

    asyncio.run(main())
    assert capsys.readouterr() == ("", "batch b: 3,000 of 3,000 items have ended\n")


def test_terminal_shows_a_bar() -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=120)
    with BatchProgress("photos", console) as shown:
        shown.show(BatchCounts(1_000, 500, 250, 0, 240, 10, 0))
        shown.show(BatchCounts(1_000, 0, 0, 0, 990, 10, 0), is_last=True)
    text = output.getvalue()
    assert "photos" in text and "1000/1000" in text and "100%" in text and "10 failed" in text


def test_counts_take_a_small_part_of_the_time() -> None:
    shown = BatchProgress("photos", Console(file=io.StringIO()))
    shown.note_duration(0.0)
    assert shown.period == progress.MIN_PERIOD
    shown.note_duration(1.0)
    assert shown.period == 20.0
