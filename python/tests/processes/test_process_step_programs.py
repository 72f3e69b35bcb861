"""Programs with steps in processes: how children find the steps, and the end of children with the program."""

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
def reverse_in_process(order: Order) -> tuple[Order, int]:
    assert type(order) is Order
    return Order(order.id[::-1]), os.getpid()

@workflow
def reverses_order(id: str) -> str:
    reversed_order, pid = reverse_in_process(Order(id))
    assert type(reversed_order) is Order, type(reversed_order)
    assert pid != os.getpid()
    return reversed_order.id
"""

MAIN = """
with Engine("memory:") as engine:
    print(engine.run(reverses_order, "abc"))
"""

GUARDED = '\nif __name__ == "__main__":' + MAIN.replace("\n", "\n    ")


def run_python(*command: str, folder: pathlib.Path, input_text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        input=input_text,
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
        # the name of a module of the standard library
        ("json.py", ["-P", "json.py"]),
        ("tools/shop.py", ["tools/shop.py"]),
        ("tools/shop.py", ["-m", "tools.shop"]),
        ("tools/__main__.py", ["-m", "tools"]),
        ("tools/__main__.py", ["tools"]),
    ],
)
def test_child_finds_steps_of_its_program(file: str, command: list[str], tmp_path: pathlib.Path) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(PROGRAM + GUARDED)
    program = run_python(*command, folder=tmp_path)
    assert (program.stdout, program.stderr, program.returncode) == ("cba\n", "", 0)


def test_program_without_main_guard_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM + MAIN)
    program = run_python("shop.py", folder=tmp_path)
    assert program.returncode == 1
    error = program.stderr.splitlines()[-1]
    assert error.startswith(
        "stepfast.errors.InvalidArgument: step 'reverse_in_process' cannot run in a process: importing "
    )
    assert "raised InvalidArgument: an engine is opened while" in error
    assert error.endswith('put the code that starts the program under `if __name__ == "__main__":`')


def test_program_with_steps_in_module_is_not_imported(tmp_path: pathlib.Path) -> None:
    (tmp_path / "steps.py").write_text(PROGRAM)
    (tmp_path / "shop.py").write_text("from steps import *\nprint('starts')" + MAIN)
    program = run_python("shop.py", folder=tmp_path)
    assert (program.stdout, program.stderr) == ("starts\ncba\n", "")


def test_step_in_module_takes_instance_of_program_class(tmp_path: pathlib.Path) -> None:
    (tmp_path / "steps.py").write_text(
        "from stepfast import step\n@step(process=True)\ndef same(x: object) -> object:\n    return x\n"
    )
    (tmp_path / "my-shop.py").write_text(
        "import dataclasses\nfrom stepfast import Engine, workflow\nfrom steps import same\n"
        "@dataclasses.dataclass\nclass Order:\n    id: str\n"
        "@workflow\ndef reverses_order(id: str) -> str:\n    order = same(Order(id))\n"
        "    assert type(order) is Order\n    return order.id\n" + GUARDED
    )
    program = run_python("my-shop.py", folder=tmp_path)
    assert (program.stdout, program.stderr) == ("abc\n", "")


@pytest.mark.parametrize("command", [["-c", PROGRAM + GUARDED], ["-"]])
def test_program_without_file_is_refused(command: list[str], tmp_path: pathlib.Path) -> None:
    program = run_python(*command, folder=tmp_path, input_text=PROGRAM + GUARDED)
    assert program.returncode == 1
    error = program.stderr.splitlines()[-1]
    assert error.startswith(
        "stepfast.errors.InvalidArgument: step 'reverse_in_process' is defined in a notebook, "
    )
    assert error.endswith("move it to a module (a .py file) and import it")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("import nowhere", "raised ModuleNotFoundError: No module named 'nowhere'"),
        ("raise SystemExit(3)", "raised SystemExit: 3"),
        (
            "del sys.modules['stepfast._processes.step_location'].process_steps[reverse_in_process.location]",
            "has no step reverse_in_process",
        ),
    ],
)
def test_program_that_differs_in_child_is_refused(change: str, message: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "shop.py").write_text(
        PROGRAM + GUARDED + f'\nif __name__ != "__main__":\n    import sys\n    {change}'
    )
    program = run_python("shop.py", folder=tmp_path)
    error = program.stderr.splitlines()[-1]
    assert error.startswith(
        "stepfast.errors.InvalidArgument: step 'reverse_in_process' cannot run in a process: "
    )
    assert message in error


def test_program_that_ends_child_during_import_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM + GUARDED + '\nif __name__ != "__main__":\n    os._exit(7)')
    program = run_python("shop.py", folder=tmp_path)
    error = program.stderr.splitlines()[-1]
    assert error.startswith(
        "stepfast.errors.ProcessDied: the process of step 'reverse_in_process' ended with exit code 7 "
    )
    assert "when it imported" in error


#: The source of a program with a workflow whose body blocks.
BLOCKING_PROGRAM = """
import sys
sys.path.insert(0, {programs!r})
import process_steps
from stepfast import Engine
engine = Engine(sys.argv[1], max_processes=2)
try:
    print(engine.run(process_steps.stays.options(workflow_id="stays"), sys.argv[2], sys.argv[3]))
finally:
    # no execution runs any more, so the close does not wait
    engine.close(grace=3600)
"""


class BlockingProgram:
    """A program whose body blocks, in a process group of its own, as at a terminal."""

    def __init__(self, url: str, folder: pathlib.Path) -> None:
        pipe = Pipe(folder / "pipe")
        self.arguments = pipe.path, str(folder / "marks")
        self._process = subprocess.Popen(
            [sys.executable, "-c", BLOCKING_PROGRAM.format(programs=str(PROGRAMS)), url, *self.arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        self.body_process = pipe.read_process()

    def end_by_signal(self, signal_number: int) -> tuple[str, str, int]:
        """Sends a signal to the group and to the child. Returns the output, the errors and the exit code."""
        if signal_number != signal.SIGKILL:
            os.kill(self.body_process.pid, signal_number)
        os.killpg(self._process.pid, signal_number)
        out, err = self._process.communicate(timeout=HANG_TIMEOUT)
        return out, err, self._process.returncode


def test_execution_continues_after_kill_of_program(url: str, tmp_path: pathlib.Path) -> None:
    program = BlockingProgram(url, tmp_path)
    assert program.end_by_signal(signal.SIGKILL) == ("", "", -signal.SIGKILL)
    assert program.body_process.wait_for_end()
    with Engine(url) as engine:
        handle = engine.start(process_steps.stays.options(workflow_id="stays"), *program.arguments)
        # the recorded step did not run again, and the body in the process did
        assert handle.result() == [1, 2]


@pytest.mark.parametrize(
    ("signal_number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, -signal.SIGTERM)]
)
def test_children_write_nothing_when_signal_ends_program(
    signal_number: int, code: int, url: str, tmp_path: pathlib.Path
) -> None:
    program = BlockingProgram(url, tmp_path)
    out, err, returncode = program.end_by_signal(signal_number)
    assert (out, returncode) == ("", code)
    assert err.count("Traceback") == (signal_number == signal.SIGINT), err
    assert program.body_process.wait_for_end()
    # the interrupted body has not failed, so the engine runs it again
    with Engine(url) as engine:
        assert engine.start(
            process_steps.stays.options(workflow_id="stays"), *program.arguments
        ).result() == [1, 2]


def test_children_end_with_program_that_leaves_engine_open(tmp_path: pathlib.Path) -> None:
    (tmp_path / "shop.py").write_text(
        PROGRAM
        + 'if __name__ == "__main__":\n'
        + '    engine = Engine("memory:")\n    print(engine.run(reverses_order, "abc"))\n'
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
    children = [WatchedProcess(int(pid)) for pid in program.stdout.readline().split()]
    assert len(children) == 1
    out, err = program.communicate(timeout=HANG_TIMEOUT)
    assert (out, err, program.returncode) == ("", "", 0)
    assert all(child.wait_for_end() for child in children)


def test_child_without_parent_signal_ends_with_connection(tmp_path: pathlib.Path) -> None:
    """Without a signal of the system at the parent's end, a thread of the child watches the connection."""
    import socket

    parent_socket, child_socket = socket.socketpair()
    source = (
        "import sys, threading\nfrom stepfast._processes.child_setup import exit_with_connection\n"
        "threading.Thread(target=exit_with_connection, args=(int(sys.argv[1]),), daemon=True).start()\n"
        "print('busy', flush=True)\nwhile True: pass\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", source, str(child_socket.fileno())],
        pass_fds=[child_socket.fileno()],
        stdout=subprocess.PIPE,
    ) as program:
        assert program.stdout is not None and program.stdout.readline() == b"busy\n"
        assert program.poll() is None
        child_socket.close()
        parent_socket.close()
        assert program.wait(HANG_TIMEOUT) == 1
