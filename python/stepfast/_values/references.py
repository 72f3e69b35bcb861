"""Names of classes: `module:qualname`, or what a class was registered with."""

import functools
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final, cast, get_args

from .errors import DecodeError, Refusal

MAINS: Final = ("__main__", "__mp_main__")

class_of_name: Final[dict[str, type]] = {}
name_of_class: Final[dict[type, str]] = {}
# Where classes were found; not the classes themselves, as modules may get new ones under the same name.
_at_top: Final[dict[str, tuple[str, str]]] = {}


def name_of(cls: type) -> str:
    """The name under which `find` finds this very class.

    Raises:
        Refusal: There is none: the class is local to a function, or not where its name says.
    """
    if (name := name_of_class.get(cls)) is not None:
        return name
    module, qualname = cls.__module__, cls.__qualname__
    if "<locals>" in qualname:
        raise Refusal(
            f"class {qualname} is defined inside a function, where no replay can find it",
            "move the class to the top level of a module, or register it with a name "
            "(stepfast.values.register)",
        )
    if module in MAINS:
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
    raise Refusal(
        reason,
        "give the class a name of its own at the top level of one module, or register it with a "
        "name (stepfast.values.register)",
    )


def main_name() -> str:
    """The name by which the program that runs can be imported; `__main__` if it has no file."""
    return _importable(sys.modules["__main__"])


@functools.lru_cache(maxsize=1)
def _importable(main: ModuleType) -> str:
    if (spec := getattr(main, "__spec__", None)) is not None:
        return cast(str, spec.name)
    file = getattr(main, "__file__", None)
    if isinstance(file, str):
        stem = file.replace("\\", "/").rpartition("/")[2].removesuffix(".py")
        if stem.isidentifier():
            return stem
    return "__main__"


def find(name: str, hint: object = None) -> type:
    """The class of that name; imports its module if need be, and no other.

    Args:
        name: As `name_of` gave it, perhaps in another process.
        hint: A type annotation. A class that is not where its name says is looked for in the modules
            of the classes that the annotation mentions.

    Raises:
        DecodeError: There is no such class.
    """
    if (registered := class_of_name.get(name)) is not None:
        return registered
    try:
        module_name, attribute = _at_top[name]
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
    if module_name in MAINS or module_name == main_name():
        if (found := _look(sys.modules["__main__"], qualname)) is not None:
            if "." not in qualname:
                _at_top[name] = ("__main__", qualname)
            return found
        problem = f"the program that runs has no class {qualname}"
    if module_name not in MAINS:
        try:
            module = sys.modules.get(module_name) or importlib.import_module(module_name)
        except Exception as error:
            problem = f"module {module_name} cannot be imported ({type(error).__name__}: {error})"
        else:
            if (found := _look(module, qualname)) is not None:
                if "." not in qualname:
                    _at_top[name] = (module_name, qualname)
                return found
            problem = f"module {module_name} has no class {qualname}"
    hinted = {found for module in _modules(hint) if (found := _look(module, qualname)) is not None}
    if len(hinted) == 1:
        return hinted.pop()
    raise DecodeError(
        f"class {qualname} of module {module_name} is not found: {problem}. Keep the old name as an "
        f"alias, or register the class that took its place: stepfast.values.register(cls, "
        f"aliases=[{name!r}])"
    )


def _look(module: ModuleType, qualname: str) -> type | None:
    found: Any = module
    for part in qualname.split(".") if "." in qualname else (qualname,):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


def _modules(hint: object) -> Iterator[ModuleType]:
    if isinstance(hint, type) and (module := sys.modules.get(hint.__module__)) is not None:
        yield module
    for argument in get_args(hint):
        yield from _modules(argument)
