"""While a child process imports a module to find a step in it, no engine opens."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from stepfast.errors import Invalid

_importing: str | None = None


class Unfindable(Exception):
    """Why a step cannot be run in this process."""

    def __init__(self, reason: str, *, is_final: bool = True) -> None:
        super().__init__(reason)
        self.is_final = is_final


@contextlib.contextmanager
def importing(what: str) -> Generator[None, None, None]:
    """What goes wrong meanwhile makes the step `Unfindable`."""
    global _importing
    _importing = what
    try:
        yield
    except (Exception, SystemExit) as error:
        raise Unfindable(
            f"importing {what} there raised {type(error).__name__}: {error}",
            # files may be about to change; what the program does will not
            is_final=isinstance(error, Invalid),
        ) from error
    finally:
        _importing = None


def refuse_engines() -> None:
    """For engines that are about to open.

    Raises:
        Invalid: The program would start a second time, in a child.
    """
    if _importing is not None:
        raise Invalid(
            f"an engine is opened while the process of a step imports {_importing}, to find the step there: "
            'put what starts the program under `if __name__ == "__main__":`'
        )
