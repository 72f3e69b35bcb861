"""`python -m stepfast.bench`: runs the experiment that the program `stepfast` requests."""

from __future__ import annotations

import importlib
import platform
import sys

from stepfast._native import __version__
from stepfast.bench.messages import receive, send
from stepfast.errors import Error

#: The experiments, each a module. Only the requested one is imported, so the engine has no other workflows.
EXPERIMENTS = ("batching", "graphs", "memory", "payload", "queue", "workflows")


def main() -> None:
    """Sends the versions, receives the request, and runs the experiment."""
    if sys.stdin.isatty():
        raise SystemExit(
            "stepfast.bench is no program of its own; run: stepfast bench workflows --sdk python"
        )
    send(stepfast=__version__, python=platform.python_version())
    parameters = receive()
    experiment = parameters.pop("experiment")
    if experiment not in EXPERIMENTS:
        raise SystemExit(f"there is no experiment {experiment!r}; there are {', '.join(EXPERIMENTS)}")
    try:
        importlib.import_module(f"stepfast.bench.{experiment}").main(**parameters)
    except Error as error:
        raise SystemExit(f"{error} [{error.code}]") from None


if __name__ == "__main__":
    main()
