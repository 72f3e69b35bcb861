"""Keeps engines from opening while a child process imports the module of a step."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from stepfast.errors import InvalidArgument

_importing: str | None = None


class StepNotFound(Exception):
    """Raised if a step cannot be run in this process.

    Args:
        reason: Why not.
        is_final: Whether another attempt would fail in the same way.
    """

    def __init__(self, reason: str, *, is_final: bool = True) -> None:
        super().__init__(reason)
        self.is_final = is_final


@contextlib.contextmanager
def guard_imports(what: str) -> Generator[None, None, None]:
    """Converts errors of an import to `StepNotFound`, and marks the import for `forbid_engines`.

    Args:
        what: What is imported, for messages.
    """
    global _importing
    _importing = what
    try:
        yield
    except (Exception, SystemExit) as error:
        raise StepNotFound(
            f"importing {what} in the child process raised {type(error).__name__}: {error}",
            # files may change before the next attempt; what the program does on import will not
            is_final=isinstance(error, InvalidArgument),
        ) from error
    finally:
        _importing = None


def forbid_engines() -> None:
    """Rejects an engine that is opened by an import in a child process.

    Raises:
        InvalidArgument: The program would start a second time, in a child.
    """
    if _importing is not None:
        raise InvalidArgument(
            f"an engine is opened while the child process of a step imports {_importing} to find the step: "
            'put the code that starts the program under `if __name__ == "__main__":`'
        )
