"""Promises that hold over SIGKILL."""

import pathlib
import signal
import subprocess
import sys

from repository import PROGRAMS
from watched_process import HANG_TIMEOUT, Pipe

PROGRAM = str(PROGRAMS / "kill_program.py")


def killed(url: str, pipe: Pipe, what: str) -> str:
    run = [sys.executable, PROGRAM, url, pipe.path, what]
    program = subprocess.run(run, capture_output=True, text=True, timeout=HANG_TIMEOUT, check=False)
    expected = 0 if what == "finish" else -signal.SIGKILL
    assert program.returncode == expected, program.stderr
    return program.stdout


def test_a_resume_and_a_key_outlive_the_process(url: str, tmp_path: pathlib.Path) -> None:
    pipe = Pipe(tmp_path / "pipe")
    killed(url, pipe, "pay")
    key = pipe.read_line()
    assert key.startswith("pays/")
    killed(url, pipe, "resume")
    # an execution that was not resumed would still have failed
    assert killed(url, pipe, "finish").split() == [key, "read"]
