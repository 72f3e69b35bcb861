"""Ctrl-C while the body of a step runs."""

import pathlib
import signal
import subprocess
import sys

from repository import PROGRAMS
from watched_process import HANG_TIMEOUT, Pipe

PROGRAM = str(PROGRAMS / "interrupt_program.py")


def test_interrupted_step_runs_again_in_next_process(url: str, tmp_path: pathlib.Path) -> None:
    pipe = Pipe(tmp_path / "pipe")
    with subprocess.Popen([sys.executable, PROGRAM, url, pipe.path], stderr=subprocess.PIPE) as program:
        try:
            first_pid = pipe.read_process().pid
            program.send_signal(signal.SIGINT)
            errors = program.communicate(timeout=HANG_TIMEOUT)[1].decode()
        finally:
            program.kill()
    assert (program.returncode, errors.splitlines()[-1]) == (-signal.SIGINT, "KeyboardInterrupt")
    second_run = subprocess.run(
        [sys.executable, PROGRAM, url, "-"], capture_output=True, text=True, timeout=HANG_TIMEOUT, check=True
    )
    recorded_pid, blocked_pid, last_pid = map(int, second_run.stdout.split())
    # the recorded step did not run again, and the interrupted step did
    assert recorded_pid == first_pid != blocked_pid == last_pid
