"""Code that changes between a crash and the resumption: the execution is parked, and says why."""

import os
import pathlib
import signal
import subprocess
import sys

CHANGED = pathlib.Path(__file__).with_name("changed.py")


def ran(url: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(CHANGED), url],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_changed_code_is_parked_with_both_names(url: str) -> None:
    assert ran(url, KILL="1").returncode == -signal.SIGKILL
    changed = ran(url, CODE="second")
    assert changed.returncode == 1
    said = changed.stderr.strip().splitlines()[-1]
    assert said.startswith("stepfast.errors.Parked: "), changed.stderr
    assert '"charge"' in said and '"refund"' in said, said
    # it stays as it is until somebody resumes it
    again = ran(url)
    assert "stepfast.errors.Parked" in again.stderr
