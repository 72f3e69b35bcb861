"""`ChildProcess`: a child process, as the thread that owns it uses it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import asdict, astuple, dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from ormsgpack import packb, unpackb

from stepfast._processes.attempt import ProcessAttempt
from stepfast._processes.step_location import main_module
from stepfast._runtime.failures import FailureTuple
from stepfast._values import decode_exception

#: The code that a child process runs first. It sets the module search path before it imports the package.
BOOT = """\
import json, sys
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[1]))
settings = json.loads(connection.recv_bytes())
sys.path[:] = settings["path"]
from stepfast._processes.child_main import serve
serve(connection, settings)
"""

#: The time within which a child must end after its connection was closed, in seconds. A slower child is
#: killed.
CHILD_EXIT_TIMEOUT = 5.0


@dataclass(frozen=True)
class BodyReturned:
    """The report that the body has returned a value, with the encoded value."""

    encoded: bytes


@dataclass(frozen=True)
class BodyFailed:
    """The report that the body has raised an exception, with the failure and the exception."""

    failure: FailureTuple
    error: BaseException
    #: Whether the child must end, because it cannot safely run another body.
    is_last: bool


@dataclass(frozen=True)
class StepUnavailable:
    """The report that the child cannot run the step, with the reason."""

    reason: str
    #: Whether every further attempt would fail in the same way.
    is_final: bool


@dataclass(frozen=True)
class ChildEnded:
    """The report that the child has ended. Its code is the exit code, or minus the number of a signal; `None`
    if this process had to kill the child."""

    code: int | None
    has_begun: bool


class ChildProcess:
    """A child process that runs one body after another.

    The child has a process group of its own. So signals of the terminal, such as Ctrl-C, reach only the
    program. Processes that a body has started are killed with the group of the child.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._connection: Connection[Any, Any] = Connection(ours.detach())
        with theirs:
            # the child gets the same interpreter options as this process; multiprocessing uses this function
            # too
            options: list[str] = getattr(subprocess, "_args_from_interpreter_flags")()  # noqa: B009
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, *options, "-P", "-c", BOOT, str(number)],
                stdin=subprocess.DEVNULL,
                pass_fds=(number,),
                process_group=0,
            )
        self._lock = threading.Lock()
        # shows the end of the child: the connection does not show it if a process that the child has forked
        # holds the connection open
        self._sentinel = os.pidfd_open(self._process.pid) if hasattr(os, "pidfd_open") else None
        settings = {
            "path": [str(entry) for entry in sys.path],
            "arguments": sys.argv,
            "parent": os.getpid(),
            "main": asdict(main_module()),
        }
        with contextlib.suppress(OSError):
            self._connection.send_bytes(json.dumps(settings).encode())

    def run_step(
        self, attempt: ProcessAttempt
    ) -> BodyReturned | BodyFailed | StepUnavailable | ChildEnded | None:
        """Runs the body of a step, and returns the child's report. Returns `None` if the body exceeded the
        timeout of the step and was killed."""
        step, has_begun = attempt.step, False
        try:
            self._connection.send_bytes(
                packb([astuple(step.location), step.location.file, attempt.step_context])
            )
            self._connection.send_bytes(attempt.arguments)
            while True:
                if not self._wait_for_message(step.timeout if has_begun else None):
                    self.kill()
                    return None
                match unpackb(self._connection.recv_bytes()):
                    case ["begun"]:
                        has_begun = True
                    case ["returned"]:
                        return BodyReturned(self._connection.recv_bytes())
                    case ["failed", kind, message, causes, is_retryable, detail, note, is_last]:
                        error = decode_exception(detail)
                        # `add_note` fails if the class of the exception is frozen
                        with contextlib.suppress(Exception):
                            error.add_note(note)
                        return BodyFailed((kind, message, causes, is_retryable, detail), error, is_last)
                    case ["unfit", reason, is_final]:
                        return StepUnavailable(reason, is_final)
                    case message:
                        raise AssertionError(f"a child process has sent the unknown message {message!r}")
        except (EOFError, OSError):
            return ChildEnded(self._end(), has_begun)

    def _wait_for_message(self, seconds: float | None) -> bool:
        """Waits for a message of the child. Returns False if none has come within `seconds`. Raises
        `EOFError` if the child has ended without a message."""
        watched: list[Connection[Any, Any] | int] = [self._connection]
        if self._sentinel is not None:
            watched.append(self._sentinel)
        ready = wait(watched, seconds)
        if ready and self._connection not in ready and not self._connection.poll():
            raise EOFError
        return bool(ready)

    def kill(self) -> None:
        """Kills the child and all processes of its group. Any thread may call this method."""
        with self._lock:
            if self._process.returncode is None:
                self._kill_group()

    def close(self) -> None:
        """Ends a child that runs no body. Returns after the child and all processes of its group have
        ended."""
        self._end()

    def _end(self) -> int | None:
        """Closes the connection, and waits for the end of the child. Returns the exit code of the child, or
        `None` if the child had to be killed."""
        self._connection.close()
        has_ended = self._has_ended_within(CHILD_EXIT_TIMEOUT)
        with self._lock:
            self._kill_group()
            code = self._process.wait()
        if self._sentinel is not None:
            os.close(self._sentinel)
            self._sentinel = None
        return code if has_ended else None

    def _has_ended_within(self, seconds: float) -> bool:
        if self._sentinel is not None:
            return bool(wait([self._sentinel], seconds))
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _kill_group(self) -> None:
        # all processes of the group may have ended, or another user's process may have the id of the group
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
