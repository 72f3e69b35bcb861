"""The recorded names of classes: `module:qualname`, or the name under which a class was registered."""

import functools
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final, cast, get_args

from .errors import DecodeError, NotRecordable

MAIN_MODULES: Final = ("__main__", "__mp_main__")

class_of_name: Final[dict[str, type]] = {}
name_of_class: Final[dict[type, str]] = {}
# The module and attribute of each class that was found, by its recorded name. The classes themselves are not
# kept, because modules may define new classes under the same name.
_top_level_classes: Final[dict[str, tuple[str, str]]] = {}


def name_of(cls: type) -> str:
    """Returns the name under which `find` finds this very class.

    Raises:
        NotRecordable: The class is local to a function, or is not at the location of its name.
    """
    if (name := name_of_class.get(cls)) is not None:
        return name
    module, qualname = cls.__module__, cls.__qualname__
    if "<locals>" in qualname:
        raise NotRecordable(
            f"class {qualname} is defined inside a function, where no replay can find it",
            "move the class to the top level of a module, or register it with a name "
            "(stepfast.values.register)",
        )
    if module in MAIN_MODULES:
        module = main_name()
    name = f"{module}:{qualname}"
    try:
        found = find(name)
    except DecodeError:
        found = None
    if found is cls:
        return name
    if found is None:
        reason = f"there is no {qualname} in module {module}, so no replay can find the class"
    else:
        reason = f"{qualname} in module {module} is another class"
        if cls.__module__ != found.__module__:
            reason += f": the file was loaded twice, as {cls.__module__} and as {found.__module__}"
    raise NotRecordable(
        reason,
        "give the class its own name at the top level of a module that is imported once, or register it "
        "with a name (stepfast.values.register)",
    )


def main_name() -> str:
    """Returns the name by which the running program can be imported; `__main__` if there is none."""
    return _importable_name(sys.modules["__main__"])


@functools.lru_cache(maxsize=1)
def _importable_name(main: ModuleType) -> str:
    if (spec := getattr(main, "__spec__", None)) is not None:
        return cast(str, spec.name)
    file = getattr(main, "__file__", None)
    if isinstance(file, str):
        stem = file.replace("\\", "/").rpartition("/")[2].removesuffix(".py")
        if stem.isidentifier():
            return stem
    return "__main__"


def find(name: str, hint: object = None) -> type:
    """Returns the class with this recorded name. Imports its module if necessary, and no other module.

    Args:
        name: The name that `name_of` returned, perhaps in another process.
        hint: A type annotation; None by default. A class that is not at the location of its name is searched
            in the modules of the classes that the annotation mentions.

    Raises:
        DecodeError: No such class is found.
    """
    if (registered := class_of_name.get(name)) is not None:
        return registered
    try:
        module_name, attribute = _top_level_classes[name]
        found = getattr(sys.modules[module_name], attribute)
    except (KeyError, AttributeError):
        return _search(name, hint)
    return found if isinstance(found, type) else _search(name, hint)


def _search(name: str, hint: object) -> type:
    module_name, _, qualname = name.partition(":")
    if not qualname:
        raise DecodeError(
            f"no class is registered as {name!r}: register it with that name "
            "(stepfast.values.register), before values are read"
        )
    problem = ""
    if module_name in MAIN_MODULES or module_name == main_name():
        if (found := _lookup(sys.modules["__main__"], qualname)) is not None:
            if "." not in qualname:
                _top_level_classes[name] = ("__main__", qualname)
            return found
        problem = f"the program that runs has no class {qualname}"
    if module_name not in MAIN_MODULES:
        try:
            module = sys.modules.get(module_name) or importlib.import_module(module_name)
        except Exception as error:
            problem = f"module {module_name} cannot be imported ({type(error).__name__}: {error})"
        else:
            if (found := _lookup(module, qualname)) is not None:
                if "." not in qualname:
                    _top_level_classes[name] = (module_name, qualname)
                return found
            problem = f"module {module_name} has no class {qualname}"
    hinted = {found for module in _hinted_modules(hint) if (found := _lookup(module, qualname)) is not None}
    if len(hinted) == 1:
        return hinted.pop()
    raise DecodeError(
        f"class {qualname} of module {module_name} is not found: {problem}. Keep the old name as an "
        f"alias, or register the class that took its place: stepfast.values.register(cls, "
        f"aliases=[{name!r}])"
    )


def _lookup(module: ModuleType, qualname: str) -> type | None:
    found: Any = module
    for part in qualname.split(".") if "." in qualname else (qualname,):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


def _hinted_modules(hint: object) -> Iterator[ModuleType]:
    if isinstance(hint, type) and (module := sys.modules.get(hint.__module__)) is not None:
        yield module
    for argument in get_args(hint):
        yield from _hinted_modules(argument)
