"""Durability of resumes, idempotency keys and tasks of graphs when SIGKILL ends the process."""

import pathlib
import signal
import subprocess
import sys

import pytest
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


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_graph_continues_after_a_kill_between_its_items(url: str, tmp_path: pathlib.Path, mode: str) -> None:
    file = tmp_path / "bodies"
    program = [sys.executable, str(PROGRAMS / "kill_graph_program.py"), url, str(file), mode]
    killed = subprocess.run(program, capture_output=True, text=True, timeout=HANG_TIMEOUT, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    continued = subprocess.run(program, capture_output=True, text=True, timeout=HANG_TIMEOUT, check=False)
    assert continued.returncode == 0, continued.stderr
    # every item is recorded once
    total, recorded = continued.stdout.split()
    assert (int(total), int(recorded)) == (sum(n * n for n in range(200)), 202)
    bodies = file.read_text().splitlines()
    assert bodies.count("numbers") == bodies.count("total") == 1
    # bodies whose outcomes were not durable at the kill run again
    assert set(bodies) == {"numbers", "total", *(f"item {n}" for n in range(200))}
    assert len(bodies) < 2 * 202
