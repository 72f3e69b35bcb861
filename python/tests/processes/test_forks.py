"""Forks while an engine is open: the child cannot use the engine of its parent, and does not disturb it."""

import json
import os
import signal
import socket
import subprocess
import sys
from typing import Any

from repository import PROGRAMS

PROGRAM = PROGRAMS / "fork_program.py"
FORK_ERROR = "InvalidArgument SF-0034"


def play_scene(scene: str, url: str, expected_log: str = "") -> Any:
    """Returns the results of a scene, and asserts that the program logs the expected lines only."""
    process = subprocess.run(
        [sys.executable, PROGRAM, scene, url],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    assert process.stderr == expected_log
    return json.loads(process.stdout)


def test_forked_child_cannot_use_engine_of_parent(url: str) -> None:
    # a close is permitted, because every `with` block ends with one
    assert play_scene("uses_engine_of_parent", url) == [FORK_ERROR] * 9 + ["no error"]


def test_forked_child_cannot_use_async_engine_of_parent(url: str) -> None:
    assert play_scene("uses_async_engine_of_parent", url) == [FORK_ERROR] * 4


def test_forked_child_cannot_use_batch_of_parent(url: str) -> None:
    assert play_scene("uses_batch_of_parent", url) == [FORK_ERROR] * 7


def test_forked_child_cannot_submit_inputs_of_parent(url: str) -> None:
    assert play_scene("ends_submission_of_parent", url) == 2_500


def test_forked_child_opens_engine_of_its_own(url: str) -> None:
    assert play_scene("opens_engine_of_its_own", url) == [[0, 1, 2, 3]] * 10


def test_end_of_forked_child_has_no_effect_on_parent(url: str) -> None:
    assert play_scene("ends_normally", url) == [0, 3]


def test_children_are_forked_under_load(url: str) -> None:
    assert play_scene("forks_under_load", url) == [0] * 30


def test_body_has_pool_of_forked_processes(url: str) -> None:
    assert play_scene("forks_in_body", url) == [[0, 1, 2, 3]] * 2


def test_forked_child_cannot_make_durable_calls(url: str) -> None:
    assert play_scene("forks_in_workflow_code", url) == [[FORK_ERROR, FORK_ERROR, "2"]] * 2


def test_forked_child_does_not_end_body_of_parent(url: str) -> None:
    assert play_scene("child_returns_from_body", url) == 1


def test_living_child_does_not_prevent_takeover_from_parent(url: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, PROGRAM, "child_outlives_parent", url],
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert parent.wait(60) == -signal.SIGKILL
        try:
            place = f"worker: 1, host: {socket.gethostname()}, pid: {parent.pid}"
            expected_log = f"a worker is dead; its executions are being requeued ({place})\n"
            assert play_scene("takes_over_execution", url, expected_log) == "done"
        finally:
            os.kill(child, signal.SIGKILL)
