"""Keeps engines from opening while a child process imports the module of a step."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from stepfast.errors import InvalidArgument

_importing: str | None = None


class StepNotFound(Exception):
    """The child process cannot run a step.

    Args:
        reason: The reason, as text.
        is_final: Whether another attempt would fail in the same way.
    """

    def __init__(self, reason: str, *, is_final: bool = True) -> None:
        super().__init__(reason)
        self.is_final = is_final


@contextlib.contextmanager
def guard_imports(what: str) -> Generator[None, None, None]:
    """Converts errors of an import to `StepNotFound`, and marks the import for `forbid_engines`.

    Args:
        what: The imported module, as error messages name it.
    """
    global _importing
    _importing = what
    try:
        yield
    except (Exception, SystemExit) as error:
        raise StepNotFound(
            f"importing {what} in the child process raised {type(error).__name__}: {error}",
            # another attempt may find changed files; but a call that is forbidden in an import stays
            # forbidden
            is_final=isinstance(error, InvalidArgument),
        ) from error
    finally:
        _importing = None


def forbid_engines() -> None:
    """Rejects an engine that a module opens while a child process imports the module.

    Raises:
        InvalidArgument: A child process is importing a module of the program, which would start a second
            time.
    """
    if _importing is not None:
        raise InvalidArgument(
            f"an engine is opened while the child process of a step imports {_importing} to find the step: "
            'put the code that starts the program under `if __name__ == "__main__":`'
        )
