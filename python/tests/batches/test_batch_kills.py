"""Batches whose process is ended by SIGKILL: during the submission, and while their items run."""

import json
import pathlib
import signal
import subprocess
import sys

import pytest
from batch_kill_program import ITEMS
from repository import PROGRAMS
from watched_process import HANG_TIMEOUT

PROGRAM = str(PROGRAMS / "batch_kill_program.py")


def run_program(url: str, file: pathlib.Path, action: str) -> str:
    run = [sys.executable, PROGRAM, url, str(file), action]
    program = subprocess.run(run, capture_output=True, text=True, timeout=HANG_TIMEOUT, check=False)
    expected = 0 if action == "finish" else -signal.SIGKILL
    assert program.returncode == expected, program.stderr
    return program.stdout


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_batch_continues_after_kills(url: str, tmp_path: pathlib.Path, mode: str) -> None:
    file = tmp_path / f"bodies-{mode}"
    for action in ("submit", "run"):
        run_program(url, file, action)
    submitted, completed, outputs = json.loads(run_program(url, file, "finish"))
    assert (submitted, completed) == (ITEMS, ITEMS)
    assert outputs == [n * n for n in range(ITEMS)]
    bodies = file.read_text().splitlines()
    assert set(bodies) == {str(n) for n in range(ITEMS)}
    # bodies whose outcomes were not durable at the kill run again
    assert len(bodies) < 2 * ITEMS
