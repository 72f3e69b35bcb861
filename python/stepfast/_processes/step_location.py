"""The location of a step's definition, at which the child process finds the step."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stepfast._values.references import MAIN_MODULES, main_name
from stepfast.errors import InvalidArgument

if TYPE_CHECKING:
    from stepfast._processes.process_step import ProcessStep


@dataclass(frozen=True)
class StepLocation:
    """The location of a step: the module and the qualified name of its function, and the name of the step.
    The name is needed because one function may be several steps."""

    module: str
    qualname: str
    step: str

    @property
    def is_main(self) -> bool:
        """Whether the step is defined in the main module of the program."""
        return self.module in MAIN_MODULES

    @property
    def file(self) -> str | None:
        """The source file of the module; None if the module has none."""
        file = getattr(sys.modules.get(self.module), "__file__", None)
        return file if isinstance(file, str) and file.endswith(".py") else None


#: All process steps that the program has defined, by their location.
process_steps: Final[dict[StepLocation, ProcessStep[..., Any]]] = {}


@dataclass(frozen=True)
class MainModule:
    """The main module of the running program: its importable name and its file."""

    name: str
    file: str | None
    #: Whether the program was started by the name of the module (`python -m name`).
    is_module: bool


def main_module() -> MainModule:
    """Returns the name and the file by which a child process imports the main module of this program."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    is_module = getattr(main, "__spec__", None) is not None
    is_file = isinstance(file, str) and os.path.isfile(file)
    return MainModule(main_name(), os.path.abspath(str(file)) if is_file else None, is_module)


def step_location(name: str, function: Callable[..., Any]) -> StepLocation:
    """Returns the location of a function that becomes the step `name`.

    Raises:
        InvalidArgument: A child process could not find the step at this location.
    """
    location = StepLocation(function.__module__, function.__qualname__, name)
    if "<locals>" in location.qualname or "<lambda>" in location.qualname:
        raise InvalidArgument(
            f"step {name!r} is defined inside a function or as a lambda ({location.qualname}), where the "
            "process that is to run it cannot find it: define it with `def` at the top level of a module"
        )
    if location.is_main and main_module().file is None:
        raise InvalidArgument(
            f"step {name!r} is defined in a notebook, in an interactive session or on the command line, "
            "where the process that is to run it cannot find it: move it to a module (a .py file) and "
            "import it"
        )
    if getattr(sys, "frozen", False) or not sys.executable:
        raise InvalidArgument(
            f"step {name!r} is to run in a process, but there is no Python interpreter to start: the program "
            "is frozen or embedded. Leave out process=True"
        )
    return location
