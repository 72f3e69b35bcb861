"""The workflows that the program has defined, by name."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from stepfast._validation.names import location_of
from stepfast.errors import InvalidArgument

if TYPE_CHECKING:
    from stepfast._runtime.engine_interface import Host
    from stepfast._workflow.workflow import Workflow

_registered: Final[dict[str, Workflow[..., Any]]] = {}
#: The functions that complete the definitions of graphs, by name.
_completions: Final[dict[str, Callable[[], None]]] = {}
#: The open engines and clients. They run the new code of a workflow that is defined again, as in a notebook
#: whose cells are executed again.
open_engines: Final[weakref.WeakSet[Host]] = weakref.WeakSet()

#: The advice of error messages if one function defines several workflows of the same name.
DISTINCT_NAMES_ADVICE: Final = (
    'Let the function that makes them give each a name of its own: @workflow(name=f"…")'
)


def registered_workflows() -> list[Workflow[..., Any]]:
    """Returns all workflows that the program has defined, sorted by name.

    Raises:
        InvalidArgument: A graph is invalid.
    """
    for complete in list(_completions.values()):
        complete()
    return [_registered[name] for name in sorted(_registered)]


def registered_workflow(name: str) -> Workflow[..., Any] | None:
    """Returns the workflow that the program has defined under this name; None if there is none."""
    return _registered.get(name)


def register(workflow: Workflow[..., Any], complete: Callable[[], None] | None = None) -> None:
    """Registers a workflow for the engines that open from now on, and for open engines that know its name.

    Args:
        workflow: The workflow.
        complete: A function that completes the definition before an engine opens; None if it is complete.

    Raises:
        InvalidArgument: Another workflow has the name.
    """
    known = _registered.get(workflow.name)
    if known is not None and location_of(known.function) != location_of(workflow.function):
        raise InvalidArgument(
            f"two workflows are called {workflow.name!r}, in {location_of(known.function)} and in "
            f"{location_of(workflow.function)}; give one of them another name: @workflow(name=...)"
        )
    engines = [engine for engine in open_engines if not engine.is_closed] if known is not None else []
    if known is not None and _is_variant(known, workflow) and any(known in it.numbers for it in engines):
        raise InvalidArgument(
            f"workflow {workflow.name!r} is made again, by the same code with other values, while an engine "
            f"is open that knows the first one: its executions would continue with the new one. "
            f"{DISTINCT_NAMES_ADVICE}"
        )
    _registered[workflow.name] = workflow
    _completions.pop(workflow.name, None)
    if complete is not None:
        _completions[workflow.name] = complete
    for engine in engines:
        engine.redefine(workflow)


def reject_replaced(workflow: Workflow[..., Any]) -> None:
    """Rejects a workflow whose name now belongs to another one that the same code has made with other values.

    Raises:
        InvalidArgument: The workflow was replaced.
    """
    current = _registered.get(workflow.name)
    if current is not None and _is_variant(workflow, current):
        raise InvalidArgument(
            f"workflow {workflow.name!r} was replaced by another one of this name, made by the same code "
            f"with other values. {DISTINCT_NAMES_ADVICE}"
        )


def _is_variant(one: Workflow[..., Any], other: Workflow[..., Any]) -> bool:
    """Returns whether two workflows have the same code, but other values in closures or defaults of
    arguments."""
    functions: list[Any] = [inspect.unwrap(one.function), inspect.unwrap(other.function)]
    codes = [getattr(function, "__code__", function) for function in functions]
    return one is not other and codes[0] is codes[1] and _value_ids(functions[0]) != _value_ids(functions[1])


def _value_ids(function: Any) -> list[int]:
    """Returns the identities of the values that a function's code uses besides its arguments."""
    cells = getattr(function, "__closure__", None) or ()
    values: list[Any] = [*(getattr(function, "__defaults__", None) or ())]
    values += (getattr(function, "__kwdefaults__", None) or {}).values()
    for cell in cells:
        try:
            values.append(cell.cell_contents)
        except ValueError:
            # the variable of the cell has no value yet
            values.append(cell)
    return [id(value) for value in values]
