"""What a child process does: runs bodies, one after another, until the program closes the connection."""

from __future__ import annotations

import contextlib
import sys
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, cast

from ormsgpack import packb, unpackb

from stepfast._processes.child_setup import settle_in
from stepfast._processes.import_guard import Unfindable
from stepfast._processes.process_step import ProcessStep
from stepfast._processes.step_loader import Imports
from stepfast._processes.step_location import Main, Place
from stepfast._runtime import log
from stepfast._runtime.branch import here_var
from stepfast._runtime.failures import failure_in_step
from stepfast._values import DecodeError, decode, encode
from stepfast._values.errors import unicode_of


@dataclass(frozen=True)
class Here:
    """The execution and the position of the body that runs here, as `current` asks a branch and a call."""

    workflow_id: str
    workflow: str
    path: str | None


def serve(connection: Connection[Any, Any], told: dict[str, Any]) -> None:
    """Runs the bodies that the program asks for."""
    settle_in(connection, told["parent"])
    sys.argv[:] = told["arguments"]
    log.install()
    imports = Imports(Main(**told["main"]))
    # the program has ended, or the engine is closed
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            request, arguments = connection.recv_bytes(), connection.recv_bytes()
            answer(connection, imports, unpackb(request), arguments)
            del request, arguments


def answer(connection: Connection[Any, Any], imports: Imports, request: list[Any], arguments: bytes) -> None:
    """Runs one body, and sends what it comes to."""
    try:
        place, file, where = request
        step = imports.step(Place(*place), file)
        args, kwargs = read(imports, arguments)
    except Unfindable as error:
        connection.send_bytes(packb(["unfit", unicode_of(str(error)), error.is_final]))
        return
    connection.send_bytes(packb(["begun"]))
    here = Here(*where)
    here_var.set(cast("Any", (here, here, step.name)))
    encoded, report = outcome(step, args, kwargs)
    here_var.set(None)
    flush()
    connection.send_bytes(packb(report))
    if encoded is not None:
        connection.send_bytes(encoded)


def read(imports: Imports, arguments: bytes) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a body."""
    try:
        args, kwargs = decode(arguments)
    except DecodeError as error:
        try:
            # one of their classes may be the program's own
            imports.program()
            args, kwargs = decode(arguments)
        except (DecodeError, Unfindable) as second:
            also = "" if str(second) == str(error) else f" ({second})"
            raise Unfindable(f"its arguments cannot be read there: {error}{also}") from error
    return args, kwargs


def outcome(
    step: ProcessStep[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> tuple[bytes | None, list[object]]:
    """Runs the body: its encoded value, if it has returned one, and what is to be reported."""
    try:
        return encode(step.function(*args, **kwargs)), ["returned"]
    except Exception as error:
        trace = "".join(traceback.format_tb(error.__traceback__)[1:])
        note = unicode_of(f"In the process of step {step.name!r}:\n{trace}".rstrip())
        # what is left of the memory is better not used any more
        is_last = isinstance(error, MemoryError)
        return None, ["failed", *failure_in_step(step.name, error, step.retry_if), note, is_last]


def flush() -> None:
    """What was printed is seen before the outcome, and is not lost if the child is killed later."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
