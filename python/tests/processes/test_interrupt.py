"""Ctrl-C in a step."""

import pathlib
import signal
import subprocess
import sys

from repository import PROGRAMS
from watched_process import HANG_TIMEOUT, Pipe

PROGRAM = str(PROGRAMS / "interrupt_program.py")


def test_a_step_that_is_interrupted_is_not_given_up(url: str, tmp_path: pathlib.Path) -> None:
    pipe = Pipe(tmp_path / "pipe")
    with subprocess.Popen([sys.executable, PROGRAM, url, pipe.path], stderr=subprocess.PIPE) as program:
        try:
            first = pipe.read_process().pid
            program.send_signal(signal.SIGINT)
            said = program.communicate(timeout=HANG_TIMEOUT)[1].decode()
        finally:
            program.kill()
    assert (program.returncode, said.splitlines()[-1]) == (-signal.SIGINT, "KeyboardInterrupt")
    again = subprocess.run(
        [sys.executable, PROGRAM, url, "-"], capture_output=True, text=True, timeout=HANG_TIMEOUT, check=True
    )
    one, stayed, last = map(int, again.stdout.split())
    # the step before it did not run again, and the one that was interrupted did
    assert one == first != stayed == last
