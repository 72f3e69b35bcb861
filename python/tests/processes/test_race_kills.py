"""Winners of races when SIGKILL ends the process during the race or after it."""

import signal
import subprocess
import sys

import pytest
from repository import PROGRAMS
from watched_process import HANG_TIMEOUT

PROGRAM = str(PROGRAMS / "race_program.py")


def run_program(url: str, *args: str) -> subprocess.CompletedProcess[str]:
    run = [sys.executable, PROGRAM, url, *args]
    return subprocess.run(run, capture_output=True, text=True, timeout=HANG_TIMEOUT, check=False)


@pytest.mark.parametrize("point", ["unwinding", "after"])
@pytest.mark.parametrize("first", ["a", "b"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_winner_of_race_outlives_killed_process(url: str, mode: str, first: str, point: str) -> None:
    killed = run_program(url, mode, first, point)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    continued = run_program(url, mode, first, "never")
    assert continued.returncode == 0, continued.stderr
    winner = (0, (0, "first")) if first == "a" else (1, "first")
    assert continued.stdout.strip() == str([winner, "late", "late"])
