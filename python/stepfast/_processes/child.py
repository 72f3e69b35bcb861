"""`Child`: a child process, as the slot sees it that owns it."""

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

from stepfast._processes.attempt import Attempt
from stepfast._processes.step_location import main_of_program
from stepfast._runtime.failures import Failure
from stepfast._values import decode_exception

#: What a child begins with: it has to find modules as the program does before it imports any of them.
BOOT = """\
import json, sys
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[1]))
told = json.loads(connection.recv_bytes())
sys.path[:] = told["path"]
from stepfast._processes.child_main import serve
serve(connection, told)
"""

#: Seconds within which a child has to end once its connection is closed.
PATIENCE = 5.0


@dataclass(frozen=True)
class Returned:
    """The body has returned the value with this encoding."""

    encoded: bytes


@dataclass(frozen=True)
class Failed:
    """The body has raised an exception."""

    failure: Failure
    error: BaseException
    #: The child is not fit for another body.
    is_last: bool


@dataclass(frozen=True)
class Unfit:
    """The child cannot run the step at all."""

    reason: str
    #: It would be the same another time.
    is_final: bool


@dataclass(frozen=True)
class Ended:
    """The child has ended, with an exit code or minus the number of a signal; `None` if it was made to."""

    code: int | None
    has_begun: bool


class Child:
    """A child process that runs one body after another.

    It is in a process group of its own: what is typed at the terminal reaches only the program, and what a
    body has started ends with the child.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._connection: Connection[Any, Any] = Connection(ours.detach())
        with theirs:
            # interpreter options are handed on as multiprocessing does it
            options: list[str] = getattr(subprocess, "_args_from_interpreter_flags")()  # noqa: B009
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, *options, "-P", "-c", BOOT, str(number)],
                stdin=subprocess.DEVNULL,
                pass_fds=(number,),
                process_group=0,
            )
        self._lock = threading.Lock()
        # the connection alone would not do: something that the child has forked may hold it open
        self._sentinel = os.pidfd_open(self._process.pid) if hasattr(os, "pidfd_open") else None
        told = {
            "path": [str(entry) for entry in sys.path],
            "arguments": sys.argv,
            "parent": os.getpid(),
            "main": asdict(main_of_program()),
        }
        with contextlib.suppress(OSError):
            self._connection.send_bytes(json.dumps(told).encode())

    def carry_out(self, attempt: Attempt) -> Returned | Failed | Unfit | Ended | None:
        """Runs the body of a step; `None` if that took longer than its timeout, and was killed."""
        step, has_begun = attempt.step, False
        try:
            self._connection.send_bytes(packb([astuple(step.place), step.place.file, attempt.where]))
            self._connection.send_bytes(attempt.arguments)
            while True:
                if not self._is_heard(step.timeout if has_begun else None):
                    self.kill()
                    return None
                match unpackb(self._connection.recv_bytes()):
                    case ["begun"]:
                        has_begun = True
                    case ["returned"]:
                        return Returned(self._connection.recv_bytes())
                    case ["failed", kind, message, causes, is_retryable, detail, trace, is_last]:
                        error = decode_exception(detail)
                        # its class may be frozen
                        with contextlib.suppress(Exception):
                            error.add_note(trace)
                        return Failed((kind, message, causes, is_retryable, detail), error, is_last)
                    case ["unfit", reason, is_final]:
                        return Unfit(reason, is_final)
                    case other:
                        raise AssertionError(f"a child has said {other!r}")
        except (EOFError, OSError):
            return Ended(self._end(), has_begun)

    def _is_heard(self, seconds: float | None) -> bool:
        """Waits for a message, or for the child's end; false if there was neither in time."""
        watched: list[Connection[Any, Any] | int] = [self._connection]
        if self._sentinel is not None:
            watched.append(self._sentinel)
        heard = wait(watched, seconds)
        if heard and self._connection not in heard and not self._connection.poll():
            raise EOFError
        return bool(heard)

    def kill(self) -> None:
        """Kills it, and what it has started. From any thread."""
        with self._lock:
            if self._process.returncode is None:
                self._kill_group()

    def close(self) -> None:
        """Lets it end, if it waits for a body; returns when it has, and what it had started too."""
        self._end()

    def _end(self) -> int | None:
        """Closes the connection; what the child ended with, `None` if it had to be killed for that."""
        self._connection.close()
        has_ended = self._has_ended_within(PATIENCE)
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
        # its group may be gone by now, or may not be ours any more
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
