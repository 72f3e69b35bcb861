"""Where a step is defined, as the process that runs its body has to find it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stepfast._values.references import MAINS, main_name
from stepfast.errors import Invalid

if TYPE_CHECKING:
    from stepfast._processes.process_step import ProcessStep


@dataclass(frozen=True)
class Place:
    """Where a step is found: module and qualified name of its function, and its own name, as one function may
    be several steps."""

    module: str
    qualname: str
    step: str

    @property
    def is_main(self) -> bool:
        """True if it is defined in the program that runs."""
        return self.module in MAINS

    @property
    def file(self) -> str | None:
        """The file of its module."""
        file = getattr(sys.modules.get(self.module), "__file__", None)
        return file if isinstance(file, str) and file.endswith(".py") else None


#: All process steps that have been defined.
steps: Final[dict[Place, ProcessStep[..., Any]]] = {}


@dataclass(frozen=True)
class Main:
    """The program that runs: the name under which it can be imported, and its file."""

    name: str
    file: str | None
    #: It was found by name (`python -m name`).
    is_module: bool


def main_of_program() -> Main:
    """What a child needs to import the program that runs."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    is_module = getattr(main, "__spec__", None) is not None
    is_file = isinstance(file, str) and os.path.isfile(file)
    return Main(main_name(), os.path.abspath(str(file)) if is_file else None, is_module)


def place_of(name: str, function: Callable[..., Any]) -> Place:
    """The place of a function that is made the step `name`.

    Raises:
        Invalid: Another process cannot find it there.
    """
    place = Place(function.__module__, function.__qualname__, name)
    if "<locals>" in place.qualname or "<lambda>" in place.qualname:
        raise Invalid(
            f"step {name!r} is defined inside a function or as a lambda ({place.qualname}), where the "
            "process that is to run it cannot find it: define it with `def` at the top level of a module"
        )
    if place.is_main and main_of_program().file is None:
        raise Invalid(
            f"step {name!r} is defined in a notebook, in an interactive session or on the command line, "
            "where the process that is to run it cannot find it: move it to a module (a .py file) and "
            "import it"
        )
    if getattr(sys, "frozen", False) or not sys.executable:
        raise Invalid(
            f"step {name!r} is to run in a process, but there is no Python interpreter to start: the program "
            "is frozen or embedded. Leave out process=True"
        )
    return place
