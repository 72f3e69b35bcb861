"""Durability of resumes and idempotency keys when SIGKILL ends the process."""

import pathlib
import signal
import subprocess
import sys

from repository import PROGRAMS
from watched_process import HANG_TIMEOUT, Pipe

PROGRAM = str(PROGRAMS / "kill_program.py")


def run_program(url: str, pipe: Pipe, action: str) -> str:
    run = [sys.executable, PROGRAM, url, pipe.path, action]
    program = subprocess.run(run, capture_output=True, text=True, timeout=HANG_TIMEOUT, check=False)
    expected = 0 if action == "finish" else -signal.SIGKILL
    assert program.returncode == expected, program.stderr
    return program.stdout


def test_resume_and_idempotency_key_outlive_killed_process(url: str, tmp_path: pathlib.Path) -> None:
    pipe = Pipe(tmp_path / "pipe")
    run_program(url, pipe, "pay")
    key = pipe.read_line()
    assert key.startswith("pays/")
    run_program(url, pipe, "resume")
    # without the durable resume the execution would have failed already
    assert run_program(url, pipe, "finish").split() == [key, "read"]
