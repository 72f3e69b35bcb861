"""`BatchProgress`: shows how many items of a batch have ended, as a bar or as lines."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from stepfast._workflow.batch.counts import BatchCounts

#: The shortest time between two counts of the items, in seconds.
MIN_PERIOD: Final = 0.25
#: The shortest time between two lines where no bar can be shown, in seconds.
LINE_PERIOD: Final = 10.0
#: The time between two counts, as a multiple of the time that a count takes. So counts take at most 5 % of
#: the time, however many bundles a batch has.
_COUNTS_PER_PERIOD: Final = 20


class BatchProgress:
    """The progress of a batch on the standard error: a bar in a terminal or a notebook, and lines elsewhere.

    Use it as a context manager.

    Args:
        batch_id: The id of the batch.
        console: The console to write to; the standard error by default.

    Attributes:
        period: The time until the next count of the items is due, in seconds.
    """

    def __init__(self, batch_id: str, console: Console | None = None) -> None:
        self._batch_id = batch_id
        self._console = Console(stderr=True) if console is None else console
        self._bar: Progress | None = None
        self._last_line_at = time.monotonic()
        self._line: str = ""
        self.period = MIN_PERIOD
        if self._console.is_terminal or self._console.is_jupyter:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TaskProgressColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[failures]}", style="red", markup=False),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._task = self._bar.add_task(batch_id, total=None, failures="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    @contextmanager
    def timed(self) -> Generator[None]:
        """Returns a context manager for a count, which sets the time until the next count."""
        begun_at = time.monotonic()
        yield
        self.note_duration(time.monotonic() - begun_at)

    def note_duration(self, seconds: float) -> None:
        """Sets the time until the next count, from the time that the last count has taken."""
        self.period = max(MIN_PERIOD, seconds * _COUNTS_PER_PERIOD)

    def show(self, counts: BatchCounts, *, is_last: bool = False) -> None:
        """Shows the counts. Lines are at least 10 s apart, but for the last one."""
        failures = f"{counts.failed:,} failed" if counts.failed else ""
        if self._bar is not None:
            self._bar.update(
                self._task, total=counts.submitted, completed=counts.ended, failures=failures, refresh=is_last
            )
            return
        now = time.monotonic()
        line = f"batch {self._batch_id}: {counts.ended:,} of {counts.submitted:,} items have ended"
        line += f", {failures}" if failures else ""
        if is_last or (now - self._last_line_at >= LINE_PERIOD and line != self._line):
            self._last_line_at, self._line = now, line
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


__all__ = ["BatchProgress"]
