"""Imports, in a child process, the module that contains the step to run."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import sys
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any

from stepfast._processes.import_guard import StepNotFound, guard_imports
from stepfast._processes.process_step import ProcessStep
from stepfast._processes.step_location import MainModule, StepLocation, process_steps
from stepfast._values.references import MAIN_MODULES
from stepfast.errors import InvalidArgument


class StepLoader:
    """A finder of the steps of a program.

    Args:
        main: The program's main module.
    """

    def __init__(self, main: MainModule) -> None:
        self._main = main
        self._program: ModuleType | None = None

    def load_step(self, location: StepLocation, file: str | None) -> ProcessStep[..., Any]:
        """Returns the step at a location.

        Args:
            location: The location.
            file: The file of the module, which is loaded if the module cannot be imported by its name; None
                if the module has no file.

        Raises:
            StepNotFound: The module cannot be imported, or has no such step.
        """
        if location.is_main:
            location = dataclasses.replace(location, module=self.load_program().__name__)
        else:
            with guard_imports(f"module {location.module}"):
                import_module_or_file(location.module, file)
        step = process_steps.get(location)
        if step is None:
            raise StepNotFound(
                f"module {location.module} has no step {location.qualname} when the child process imports "
                "it; define it at the top level, and under no condition that only the program fulfils"
            )
        return step

    def load_program(self) -> ModuleType:
        """Imports the program's main module under its importable name, so that code under `if __name__ ==
        "__main__":` does not run.

        Raises:
            StepNotFound: The module cannot be imported.
        """
        if self._program is None:
            with guard_imports(self._main.file or f"module {self._main.name}"):
                self._program = import_main(self._main)
            sys.modules["__main__"] = sys.modules["__mp_main__"] = self._program
        return self._program


def import_main(main: MainModule) -> ModuleType:
    """Imports the main module of a program."""
    is_named = main.name not in MAIN_MODULES
    if is_named and main.is_module:
        return importlib.import_module(main.name)
    if main.file is None:
        raise InvalidArgument(
            "the program has no file: put the step, and classes of its arguments, into a module"
        )
    known = sys.modules.get(main.name)
    if is_named and known is None:
        return load_module(main.name, main.file)
    file = getattr(known, "__file__", None)
    if is_named and known is not None and file is not None and os.path.samefile(file, main.file):
        return known
    # no module, or another module, has the importable name of the main module
    return load_module("__mp_main__", main.file)


def import_module_or_file(name: str, file: str | None) -> ModuleType:
    """Imports a module by its name, or from its file if no module of this name is found."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if file is None or error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
    return load_module(name, file)


def load_module(name: str, file: str) -> ModuleType:
    """Loads the module `name` from its file."""
    loader = SourceFileLoader(name, file)
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    previous_main = sys.modules["__main__"]
    if name in MAIN_MODULES:
        # a main module has no spec: without one, classes are recorded under the same names as in the program
        module.__spec__ = None
        sys.modules["__main__"] = module
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        sys.modules["__main__"] = previous_main
        raise
    return module
