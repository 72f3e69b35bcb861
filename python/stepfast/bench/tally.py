"""The durations and failures of a run, the row that summarizes them, and figures of this process."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Tally:
    """The durations and failures of a run's workflows.

    Tasks of one event loop, or threads, may share a tally.

    Args:
        total: The number of workflows. Their numbers begin with 0.
    """

    def __init__(self, total: int) -> None:
        #: The numbers that no caller has taken yet.
        self.numbers: Iterator[int] = iter(range(total))
        #: The durations of the workflows that completed with the expected output, in seconds.
        self.took: list[float] = []
        self._failures: list[str] = []
        self._failure_lock = threading.Lock()

    @property
    def ended_count(self) -> int:
        """The number of workflows that have ended."""
        return len(self.took) + len(self._failures)

    def record_failure(self, message: str) -> None:
        """Records a workflow that has not completed with the expected output. Prints the first failure."""
        with self._failure_lock:
            self._failures.append(message)
            if len(self._failures) == 1:
                print(f"a workflow failed: {message}", file=sys.stderr, flush=True)

    def row(self, seconds: float) -> dict[str, Any]:
        """Returns the row of the table that summarizes the run.

        Args:
            seconds: The duration of the whole run.
        """
        durations = sorted(self.took)

        def quantile_ms(share: float) -> float:
            return 1000 * durations[max(math.ceil(share * len(durations)), 1) - 1] if durations else 0.0

        return {
            "completed": len(durations),
            "failed": len(self._failures),
            "seconds": seconds,
            "per_second": len(durations) / max(seconds, 1e-9),
            "p50_ms": quantile_ms(0.5),
            "p99_ms": quantile_ms(0.99),
            "max_ms": quantile_ms(1.0),
        }


def bytes_written() -> int:
    """Returns the number of bytes that this process has written to disk; 0 without `/proc`."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("write_bytes:")), 0)


def memory_bytes(field: str) -> int:
    """Returns the resident memory of this process, in bytes.

    Args:
        field: `VmRSS` for the present memory, `VmHWM` for its peak.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
