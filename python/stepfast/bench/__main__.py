"""`python -m stepfast.bench`: runs what the program `stepfast` asks for."""

from __future__ import annotations

import importlib
import platform
import sys

from stepfast._native import __version__
from stepfast.bench.wire import hear, say
from stepfast.errors import Error

#: Each is a module, imported only when it is wanted: an engine then has no other workflows.
EXPERIMENTS = ("memory", "payload", "queue", "workflows")


def main() -> None:
    """Says who is there, hears what is asked for, and runs it."""
    if sys.stdin.isatty():
        raise SystemExit("this is a part of the program stepfast: stepfast bench workflows --sdk python")
    say(stepfast=__version__, python=platform.python_version())
    asked = hear()
    experiment = asked.pop("experiment")
    if experiment not in EXPERIMENTS:
        raise SystemExit(f"there is no experiment {experiment!r}; there are {', '.join(EXPERIMENTS)}")
    try:
        importlib.import_module(f"stepfast.bench.{experiment}").main(**asked)
    except Error as error:
        raise SystemExit(f"{error} [{error.code}]") from None


if __name__ == "__main__":
    main()
