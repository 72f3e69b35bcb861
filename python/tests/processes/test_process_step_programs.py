"""Programs with steps in processes: how their children find the steps, and what becomes of children when the
program ends."""

import os
import pathlib
import signal
import subprocess
import sys

import process_steps
import pytest
from repository import PROGRAMS
from watched_process import HANG_TIMEOUT, Pipe, WatchedProcess

from stepfast import Engine

PROGRAM = """
import dataclasses, os, signal, sys
from stepfast import Engine, step, workflow

@dataclasses.dataclass
class Order:
    id: str

@step(process=True)
def process_of(order: Order) -> tuple[Order, int]:
    assert type(order) is Order
    return Order(order.id[::-1]), os.getpid()

@workflow
def turn(id: str) -> str:
    turned, pid = process_of(Order(id))
    assert type(turned) is Order, type(turned)
    assert pid != os.getpid()
    return turned.id
"""

MAIN = """
with Engine("memory:") as engine:
    print(engine.run(turn, "abc"))
"""

GUARDED = '\nif __name__ == "__main__":' + MAIN.replace("\n", "\n    ")


def ended(*command: str, folder: pathlib.Path, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        input=given,
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT,
    )


@pytest.mark.parametrize(
    ("file", "command"),
    [
        ("shop.py", ["shop.py"]),
        ("shop.py", ["-P", "shop.py"]),
        ("shop.py", ["-m", "shop"]),
        ("my-shop", ["my-shop"]),
        # the name of a module that is there already
        ("json.py", ["-P", "json.py"]),
        ("tools/shop.py", ["tools/shop.py"]),
        ("tools/shop.py", ["-m", "tools.shop"]),
        ("tools/__main__.py", ["-m", "tools"]),
        ("tools/__main__.py", ["tools"]),
    ],
)
def test_steps_of_a_program_are_found(file: str, command: list[str], tmp_path: pathlib.Path) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(PROGRAM + GUARDED)
    program = ended(*command, folder=tmp_path)
    assert (program.stdout, program.stderr, program.returncode) == ("cba\n", "", 0)


def test_a_program_that_would_start_again_in_the_child_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM + MAIN)
    program = ended("shop.py", folder=tmp_path)
    assert program.returncode == 1
    said = program.stderr.splitlines()[-1]
    assert said.startswith(
        "stepfast.errors.InvalidArgument: step 'process_of' cannot run in a process: importing "
    )
    assert "raised InvalidArgument: an engine is opened while" in said
    assert said.endswith('put the code that starts the program under `if __name__ == "__main__":`')


def test_a_program_with_its_steps_in_a_module_is_not_imported(tmp_path: pathlib.Path) -> None:
    (tmp_path / "steps.py").write_text(PROGRAM)
    (tmp_path / "shop.py").write_text("from steps import *\nprint('starts')" + MAIN)
    program = ended("shop.py", folder=tmp_path)
    assert (program.stdout, program.stderr) == ("starts\ncba\n", "")


def test_a_class_of_the_program_goes_to_a_step_in_a_module(tmp_path: pathlib.Path) -> None:
    (tmp_path / "steps.py").write_text(
        "from stepfast import step\n@step(process=True)\ndef same(x: object) -> object:\n    return x\n"
    )
    (tmp_path / "my-shop.py").write_text(
        "import dataclasses\nfrom stepfast import Engine, workflow\nfrom steps import same\n"
        "@dataclasses.dataclass\nclass Order:\n    id: str\n"
        "@workflow\ndef turn(id: str) -> str:\n    order = same(Order(id))\n"
        "    assert type(order) is Order\n    return order.id\n" + GUARDED
    )
    program = ended("my-shop.py", folder=tmp_path)
    assert (program.stdout, program.stderr) == ("abc\n", "")


@pytest.mark.parametrize("command", [["-c", PROGRAM + GUARDED], ["-"]])
def test_a_program_without_a_file_is_refused(command: list[str], tmp_path: pathlib.Path) -> None:
    program = ended(*command, folder=tmp_path, given=PROGRAM + GUARDED)
    assert program.returncode == 1
    said = program.stderr.splitlines()[-1]
    assert said.startswith("stepfast.errors.InvalidArgument: step 'process_of' is defined in a notebook, ")
    assert said.endswith("move it to a module (a .py file) and import it")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("import nowhere", "raised ModuleNotFoundError: No module named 'nowhere'"),
        ("raise SystemExit(3)", "raised SystemExit: 3"),
        (
            "del sys.modules['stepfast._processes.step_location'].process_steps[process_of.location]",
            "has no step process_of",
        ),
    ],
)
def test_a_program_that_is_another_one_in_the_child_is_an_error(
    change: str, says: str, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "shop.py").write_text(
        PROGRAM + GUARDED + f'\nif __name__ != "__main__":\n    import sys\n    {change}'
    )
    program = ended("shop.py", folder=tmp_path)
    said = program.stderr.splitlines()[-1]
    assert said.startswith("stepfast.errors.InvalidArgument: step 'process_of' cannot run in a process: ")
    assert says in said


def test_a_program_that_takes_its_child_down_on_import_is_an_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM + GUARDED + '\nif __name__ != "__main__":\n    os._exit(7)')
    program = ended("shop.py", folder=tmp_path)
    said = program.stderr.splitlines()[-1]
    assert said.startswith(
        "stepfast.errors.ProcessDied: the process of step 'process_of' ended with exit code 7 "
    )
    assert "when it imported" in said


#: Runs a workflow whose body stays, in a folder of its own.
STAYING = """
import sys
sys.path.insert(0, {programs!r})
import process_steps
from stepfast import Engine
engine = Engine(sys.argv[1], max_processes=2)
try:
    print(engine.run(process_steps.stays.options(workflow_id="stays"), sys.argv[2], sys.argv[3]))
finally:
    # nothing is left to be waited for
    engine.close(grace=3600)
"""


class Program:
    """A program whose body stays; in a process group of its own, as at a terminal."""

    def __init__(self, url: str, folder: pathlib.Path) -> None:
        pipe = Pipe(folder / "pipe")
        self.arguments = pipe.path, str(folder / "marks")
        self._process = subprocess.Popen(
            [sys.executable, "-c", STAYING.format(programs=str(PROGRAMS)), url, *self.arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        self.body = pipe.read_process()

    def end_by(self, number: int) -> tuple[str, str, int]:
        """Sends a signal to its group, and to its child as well: what it printed, and how it ended."""
        if number != signal.SIGKILL:
            os.kill(self.body.pid, number)
        os.killpg(self._process.pid, number)
        out, err = self._process.communicate(timeout=HANG_TIMEOUT)
        return out, err, self._process.returncode


def test_children_of_a_program_that_is_killed_end_and_the_execution_goes_on(
    url: str, tmp_path: pathlib.Path
) -> None:
    program = Program(url, tmp_path)
    assert program.end_by(signal.SIGKILL) == ("", "", -signal.SIGKILL)
    assert program.body.wait_for_end()
    with Engine(url) as engine:
        handle = engine.start(process_steps.stays.options(workflow_id="stays"), *program.arguments)
        # the step before it did not run again, and its own body did
        assert handle.result() == [1, 2]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, -signal.SIGTERM)]
)
def test_children_are_quiet_when_a_program_is_told_to_end(
    number: int, code: int, url: str, tmp_path: pathlib.Path
) -> None:
    program = Program(url, tmp_path)
    out, err, returncode = program.end_by(number)
    assert (out, returncode) == ("", code)
    assert err.count("Traceback") == (number == signal.SIGINT), err
    assert program.body.wait_for_end()
    # the body that was cut off has not failed: it runs again
    with Engine(url) as engine:
        assert engine.start(
            process_steps.stays.options(workflow_id="stays"), *program.arguments
        ).result() == [1, 2]


def test_a_program_that_does_not_close_its_engine_leaves_no_child(tmp_path: pathlib.Path) -> None:
    (tmp_path / "shop.py").write_text(
        PROGRAM
        + 'if __name__ == "__main__":\n'
        + '    engine = Engine("memory:")\n    print(engine.run(turn, "abc"))\n'
        + '    pids = open(f"/proc/self/task/{os.getpid()}/children").read().split()\n'
        + "    import threading\n"
        + "    for thread in threading.enumerate():\n"
        + '        pids += open(f"/proc/self/task/{thread.native_id}/children").read().split()\n'
        + "    print(*set(pids), flush=True)\n    sys.stdin.read()\n"
    )
    program = subprocess.Popen(
        [sys.executable, "shop.py"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "cba\n"
    left = [WatchedProcess(int(pid)) for pid in program.stdout.readline().split()]
    assert len(left) == 1
    out, err = program.communicate(timeout=HANG_TIMEOUT)
    assert (out, err, program.returncode) == ("", "", 0)
    assert all(child.wait_for_end() for child in left)


def test_without_the_help_of_the_system_a_child_ends_with_its_connection(tmp_path: pathlib.Path) -> None:
    """Where the system cannot tell a child that its parent is gone, a thread of it watches the connection."""
    import socket

    ours, theirs = socket.socketpair()
    watching = (
        "import sys, threading\nfrom stepfast._processes.child_setup import exit_with_connection\n"
        "threading.Thread(target=exit_with_connection, args=(int(sys.argv[1]),), daemon=True).start()\n"
        "print('busy', flush=True)\nwhile True: pass\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", watching, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdout=subprocess.PIPE,
    ) as program:
        assert program.stdout is not None and program.stdout.readline() == b"busy\n"
        assert program.poll() is None
        theirs.close()
        ours.close()
        assert program.wait(HANG_TIMEOUT) == 1
