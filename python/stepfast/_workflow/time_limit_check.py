"""Finds time limits of asyncio in the code of workflows. A replay cannot repeat such limits."""

from __future__ import annotations

import ast
import asyncio
import inspect
import textwrap
import warnings
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any, Final

from stepfast.errors import StepfastWarning

#: The functions of asyncio that limit time by the clock of the event loop.
_LIMITS: Final[tuple[Any, ...]] = (asyncio.timeout, asyncio.timeout_at, asyncio.wait_for)
_NAMES: Final = frozenset(limit.__name__ for limit in _LIMITS)


def warn_of_limits(name: str, function: Callable[..., Any]) -> None:
    """Warns of each place where the code of an async workflow limits time by a function of asyncio. Such a
    limit begins again in a replay."""
    known: dict[str, Any] = getattr(function, "__globals__", {})
    if not any(each in _NAMES or _is_limit(known.get(each)) for each in _names_in(function.__code__)):
        # most workflows have no time limit, so their source is not read
        return
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError):
        # code that was typed at a prompt, or generated, has no source
        return
    for call in _calls_in(tree.body[0]):
        limit = _resolve(call.func, known)
        if not _is_limit(limit):
            continue
        instead = "stepfast.wait_for" if limit is asyncio.wait_for else "stepfast.timeout"
        warnings.warn_explicit(
            f"workflow {name!r} limits its calls by asyncio.{limit.__name__}, whose clock starts again in a "
            f"replay: after a crash the execution may be parked. Use {instead}",
            StepfastWarning,
            inspect.getsourcefile(function) or "<unknown>",
            first + call.lineno - 1,
        )


def _is_limit(value: Any) -> bool:
    return any(value is limit for limit in _LIMITS)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _calls_in(node: ast.AST) -> Iterator[ast.Call]:
    """Yields the calls in the code of a workflow and of its branches. Calls in the bodies of steps that the
    code defines are left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and any(
            _last_name(decorator) == "step" for decorator in child.decorator_list
        ):
            continue
        if isinstance(child, ast.Call):
            yield child
        yield from _calls_in(child)


def _last_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _resolve(node: ast.expr, known: dict[str, Any]) -> Any:
    """Returns the object for which a name, or a name in a module, stands; None if it is not found."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        # the code may import asyncio inside the function
        module = known.get(node.value.id, asyncio if node.value.id == "asyncio" else None)
        return getattr(module, node.attr, None) if isinstance(module, ModuleType) else None
    return None


__all__ = ["warn_of_limits"]
