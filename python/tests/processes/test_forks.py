"""Processes that are forked while an engine is open: the child cannot use it, and does not disturb it."""

import json
import os
import signal
import socket
import subprocess
import sys
from typing import Any

from repository import PROGRAMS

PROGRAM = PROGRAMS / "fork_program.py"
FORKED = "InvalidArgument SF-0034"


def played(scene: str, url: str, says: str = "") -> Any:
    """What the program saw, and that it says no more on stderr."""
    ended = subprocess.run(
        [sys.executable, PROGRAM, scene, url],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == says
    return json.loads(ended.stdout)


def test_a_child_cannot_use_what_its_parent_has(url: str) -> None:
    # closing is no use: it is what every `with` block does
    assert played("uses", url) == [FORKED] * 9 + ["no error"]


def test_a_child_cannot_use_what_its_parent_has_on_a_loop(url: str) -> None:
    assert played("uses_async", url) == [FORKED] * 4


def test_a_child_opens_an_engine_of_its_own(url: str) -> None:
    assert played("opens_its_own", url) == [[0, 1, 2, 3]] * 10


def test_a_child_ends_without_a_trace(url: str) -> None:
    assert played("ends_as_usual", url) == [0, 3]


def test_children_come_and_go_under_load(url: str) -> None:
    assert played("under_load", url) == [0] * 30


def test_a_body_may_have_a_pool_of_processes(url: str) -> None:
    assert played("in_a_body", url) == [[0, 1, 2, 3]] * 2


def test_a_child_makes_no_durable_calls(url: str) -> None:
    assert played("in_the_code", url) == [[FORKED, FORKED, "2"]] * 2


def test_a_child_does_not_end_a_body_of_its_parent(url: str) -> None:
    assert played("a_child_escapes", url) == 1


def test_a_child_keeps_nobody_from_taking_over(url: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, PROGRAM, "outlives_its_parent", url],
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert parent.wait(60) == -signal.SIGKILL
        try:
            place = f"worker: 1, host: {socket.gethostname()}, pid: {parent.pid}"
            says = f"a worker is dead; its executions are being requeued ({place})\n"
            assert played("takes_over", url, says) == "done"
        finally:
            os.kill(child, signal.SIGKILL)
