"""What the callers of a benchmark have done so far, and the row of the table that it comes to."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Tally:
    """Counts and times workflows by their numbers. Tasks of one loop, or threads, may share it."""

    def __init__(self, total: int) -> None:
        #: The numbers that nobody has taken yet.
        self.numbers: Iterator[int] = iter(range(total))
        #: Seconds of each workflow that has completed with the right output.
        self.took: list[float] = []
        self._failures: list[str] = []
        self._telling = threading.Lock()

    @property
    def done(self) -> int:
        """How many have ended."""
        return len(self.took) + len(self._failures)

    def failed(self, why: str) -> None:
        """One has not completed, or not with the right output. The first is told to people."""
        with self._telling:
            self._failures.append(why)
            if len(self._failures) == 1:
                print(f"a workflow failed: {why}", file=sys.stderr, flush=True)

    def row(self, seconds: float) -> dict[str, Any]:
        """The figures after so many seconds in all."""
        took = sorted(self.took)

        def quantile(share: float) -> float:
            return 1000 * took[max(math.ceil(share * len(took)), 1) - 1] if took else 0.0

        return {
            "completed": len(took),
            "failed": len(self._failures),
            "seconds": seconds,
            "per_second": len(took) / max(seconds, 1e-9),
            "p50_ms": quantile(0.5),
            "p99_ms": quantile(0.99),
            "max_ms": quantile(1.0),
        }


def bytes_written() -> int:
    """Bytes that this process has had written to disk; 0 where the system does not tell."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("write_bytes:")), 0)


def memory(name: str) -> int:
    """Memory of this process in bytes: `VmRSS` now, `VmHWM` at most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
