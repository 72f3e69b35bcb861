"""The main loop of a child process: runs bodies one after another until the program closes the connection."""

from __future__ import annotations

import contextlib
import sys
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, cast

from ormsgpack import packb, unpackb

from stepfast._processes.child_setup import set_up_child
from stepfast._processes.import_guard import StepNotFound
from stepfast._processes.process_step import ProcessStep
from stepfast._processes.step_loader import StepLoader
from stepfast._processes.step_location import MainModule, StepLocation
from stepfast._runtime import log
from stepfast._runtime.branch import current_code
from stepfast._runtime.failures import step_failure
from stepfast._values import DecodeError, decode, encode
from stepfast._values.errors import to_unicode


@dataclass(frozen=True)
class StepContext:
    """The execution and the position of the running body. In a child process it replaces the `Branch` and the
    `Call`, because `current` reads attributes of the same names."""

    workflow_id: str
    workflow: str
    path: str | None
    attempt: int | None


def serve(connection: Connection[Any, Any], settings: dict[str, Any]) -> None:
    """Runs the bodies that the program requests, until the program closes the connection."""
    set_up_child(connection, settings["parent"])
    sys.argv[:] = settings["arguments"]
    log.install()
    loader = StepLoader(MainModule(**settings["main"]))
    # both exceptions mean that the program has ended, or has closed the engine
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            request, arguments = connection.recv_bytes(), connection.recv_bytes()
            handle_request(connection, loader, unpackb(request), arguments)
            del request, arguments


def handle_request(
    connection: Connection[Any, Any], loader: StepLoader, request: list[Any], arguments: bytes
) -> None:
    """Runs one body, and sends the report of its outcome."""
    try:
        location, file, step_context = request
        step = loader.load_step(StepLocation(*location), file)
        args, kwargs = decode_arguments(loader, arguments)
    except StepNotFound as error:
        connection.send_bytes(packb(["unfit", to_unicode(str(error)), error.is_final]))
        return
    connection.send_bytes(packb(["begun"]))
    context = StepContext(*step_context)
    current_code.set(cast("Any", (context, context, step.name, context.attempt)))
    encoded, report = run_body(step, args, kwargs)
    current_code.set(None)
    flush_output()
    connection.send_bytes(packb(report))
    if encoded is not None:
        connection.send_bytes(encoded)


def decode_arguments(loader: StepLoader, arguments: bytes) -> tuple[list[Any], dict[str, Any]]:
    """Decodes the arguments of a body."""
    try:
        args, kwargs = decode(arguments)
    except DecodeError as error:
        try:
            # a class of an argument may be defined in the program's main module
            loader.load_program()
            args, kwargs = decode(arguments)
        except (DecodeError, StepNotFound) as second:
            also = "" if str(second) == str(error) else f" ({second})"
            raise StepNotFound(f"its arguments cannot be read in the child process: {error}{also}") from error
    return args, kwargs


def run_body(
    step: ProcessStep[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> tuple[bytes | None, list[object]]:
    """Runs the body. Returns its encoded value and the report to send; the value is None if the body has
    raised an exception."""
    try:
        return encode(step.function(*args, **kwargs)), ["returned"]
    except Exception as error:
        traceback_text = "".join(traceback.format_tb(error.__traceback__)[1:])
        note = to_unicode(f"In the process of step {step.name!r}:\n{traceback_text}".rstrip())
        # after a MemoryError little memory is left, so no other body should run in this child
        is_last = isinstance(error, MemoryError)
        return None, ["failed", *step_failure(step.name, error, step.retry_if), note, is_last]


def flush_output() -> None:
    """Flushes stdout and stderr, so that the output of a body appears before its outcome. The output is also
    kept if the child is killed later."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
