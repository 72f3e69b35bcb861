"""However a program ends, its executions go on from what is recorded: nothing that its end does to their code
is recorded."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

ENDS = pathlib.Path(__file__).with_name("ends.py")

OUTPUTS = {
    "forgets": [["a1", "a2"], ["b1", "b2"], ["c"]],
    "cancels": [["a1", "a2"], ["b1", "b2"], ["c"]],
    "drops": [["a1", "a2"], ["b1", "b2"], ["c"]],
    "interrupted": [["a1", "a2"], ["b1", "b2"], ["c"]],
    "sleeping": "c",
    "sync_interrupted": ["a", "b", "c"],
    "sync_exiting": ["a", "b", "c"],
    "sync_sleeping": ["a", "c"],
}

#: How the program itself ends.
CODES = {
    "interrupted": -signal.SIGINT,
    "sync_interrupted": -signal.SIGINT,
    "sync_exiting": 7,
    "sync_sleeping": -signal.SIGINT,
}


@pytest.mark.parametrize("way", OUTPUTS)
def test_what_the_end_of_a_program_does_to_code_is_not_recorded(
    way: str, url: str, tmp_path: pathlib.Path
) -> None:
    log = tmp_path / "log"

    def ran(*more: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, str(ENDS), way, url, *more],
            env={**os.environ, "LOG": str(log)},
            capture_output=True,
            text=True,
            timeout=120,
        )

    begun = ran()
    assert begun.returncode == CODES.get(way, 0), begun.stderr
    finished = ran("finish")
    assert finished.returncode == 0, begun.stderr + finished.stderr
    assert json.loads(finished.stdout) == OUTPUTS[way]
    bodies = log.read_text().split()
    # only what was cut off runs again
    again = {"a2", "b2"} if "c" in bodies and "a2" in bodies else {"b"} & set(bodies)
    assert sorted(bodies) == sorted([*set(bodies), *again])
