"""Races when a signal ends the process during the race or after it."""

import pathlib
import signal
import subprocess
import sys

import pytest
from repository import PROGRAMS
from watched_process import HANG_TIMEOUT, Pipe

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


def test_interrupted_race_continues_in_next_process(url: str, tmp_path: pathlib.Path) -> None:
    pipe = Pipe(tmp_path / "pipe")
    command = [sys.executable, PROGRAM, url, "inline", "b", pipe.path]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as program:
        try:
            pipe.read_process()
            program.send_signal(signal.SIGINT)
            errors = program.communicate(timeout=HANG_TIMEOUT)[1].decode()
        finally:
            program.kill()
    assert (program.returncode, errors.splitlines()[-1]) == (-signal.SIGINT, "KeyboardInterrupt")
    continued = run_program(url, "sync", "b", "never")
    assert continued.returncode == 0, continued.stderr
    assert continued.stdout.strip() == str([(1, "first"), "late", "late"])
