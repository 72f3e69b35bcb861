"""`ChildProcess`: a child process, from the view of the thread that owns it."""

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

#: The program of a child. It sets the module search path before it imports any module of the program.
BOOT = """\
import json, sys
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[1]))
settings = json.loads(connection.recv_bytes())
sys.path[:] = settings["path"]
from stepfast._processes.child_main import serve
serve(connection, settings)
"""

#: How long a child may take to end after its connection was closed, in seconds.
CHILD_EXIT_TIMEOUT = 5.0


@dataclass(frozen=True)
class BodyReturned:
    """The body has returned a value, of which this is the encoding."""

    encoded: bytes


@dataclass(frozen=True)
class BodyFailed:
    """The body has raised an exception."""

    failure: FailureTuple
    error: BaseException
    #: Whether the child must not run another body.
    is_last: bool


@dataclass(frozen=True)
class StepUnavailable:
    """The child cannot run the step."""

    reason: str
    #: Whether every further attempt would fail in the same way.
    is_final: bool


@dataclass(frozen=True)
class ChildEnded:
    """The child has ended, with an exit code, or minus the number of a signal; `None` if it had to be
    killed."""

    code: int | None
    has_begun: bool


class ChildProcess:
    """A child process that runs one body after another.

    The child has a process group of its own. Keys typed at the terminal reach only the program, and processes
    that a body has started end with the child.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._connection: Connection[Any, Any] = Connection(ours.detach())
        with theirs:
            # passes the options of the interpreter on as multiprocessing does
            options: list[str] = getattr(subprocess, "_args_from_interpreter_flags")()  # noqa: B009
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, *options, "-P", "-c", BOOT, str(number)],
                stdin=subprocess.DEVNULL,
                pass_fds=(number,),
                process_group=0,
            )
        self._lock = threading.Lock()
        # the connection alone does not suffice: a process that the child has forked may hold it open
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
        """Runs the body of a step; returns `None` if the body exceeded the timeout of the step and was
        killed."""
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
                        # the class of the exception may be frozen
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
        """Waits for a message, or for the end of the child; returns False if neither came in time."""
        watched: list[Connection[Any, Any] | int] = [self._connection]
        if self._sentinel is not None:
            watched.append(self._sentinel)
        ready = wait(watched, seconds)
        if ready and self._connection not in ready and not self._connection.poll():
            raise EOFError
        return bool(ready)

    def kill(self) -> None:
        """Kills the child and all processes that it has started. Callable from any thread."""
        with self._lock:
            if self._process.returncode is None:
                self._kill_group()

    def close(self) -> None:
        """Ends a child that waits for a body; returns after it, and all processes that it had started, have
        ended."""
        self._end()

    def _end(self) -> int | None:
        """Closes the connection; returns the exit code of the child, or `None` if the child had to be
        killed."""
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
        # the group may have ended, or may belong to another user by now
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
