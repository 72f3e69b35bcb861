"""What a child process imports to find the step that it is to run."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import sys
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any

from stepfast._processes.import_guard import Unfindable, importing
from stepfast._processes.process_step import ProcessStep
from stepfast._processes.step_location import Main, Place, steps
from stepfast._values.references import MAINS
from stepfast.errors import Invalid


class Imports:
    """Finds the steps of the program whose main module is `main`."""

    def __init__(self, main: Main) -> None:
        self._main = main
        self._program: ModuleType | None = None

    def step(self, place: Place, file: str | None) -> ProcessStep[..., Any]:
        """The step at this place, whose module has this file.

        Raises:
            Unfindable: Its module cannot be imported, or does not have it.
        """
        if place.is_main:
            place = dataclasses.replace(place, module=self.program().__name__)
        else:
            with importing(f"module {place.module}"):
                imported(place.module, file)
        step = steps.get(place)
        if step is None:
            raise Unfindable(
                f"module {place.module} has no step {place.qualname} when it is imported there; define it "
                "at the top level, and under no condition that only the program fulfils"
            )
        return step

    def program(self) -> ModuleType:
        """The program's main module, under the name by which it can be imported: what stands under
        `if __name__ == "__main__":` does not run.

        Raises:
            Unfindable: It cannot be imported.
        """
        if self._program is None:
            with importing(self._main.file or f"module {self._main.name}"):
                self._program = main_module(self._main)
            sys.modules["__main__"] = sys.modules["__mp_main__"] = self._program
        return self._program


def main_module(main: Main) -> ModuleType:
    """The main module, imported."""
    is_named = main.name not in MAINS
    if is_named and main.is_module:
        return importlib.import_module(main.name)
    if main.file is None:
        raise Invalid("the program has no file: put the step, and classes of its arguments, into a module")
    known = sys.modules.get(main.name)
    if is_named and known is None:
        return loaded(main.name, main.file)
    file = getattr(known, "__file__", None)
    if is_named and known is not None and file is not None and os.path.samefile(file, main.file):
        return known
    # its name is no module's, or another one's
    return loaded("__mp_main__", main.file)


def imported(name: str, file: str | None) -> ModuleType:
    """The module, imported by its name, or else from its file."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if file is None or error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
    return loaded(name, file)


def loaded(name: str, file: str) -> ModuleType:
    """The module `name`, from its file."""
    loader = SourceFileLoader(name, file)
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.modules["__main__"]
    if name in MAINS:
        # classes are then recorded under the names that they have in the program
        module.__spec__ = None
        sys.modules["__main__"] = module
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        sys.modules["__main__"] = before
        raise
    return module
