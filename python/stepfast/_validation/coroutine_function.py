"""Marks steps and workflows as coroutine functions for asyncio and `inspect`."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, Final, cast


def _marker_attributes() -> dict[str, Any]:
    def do_nothing() -> None: ...

    # Python 3.12 and later
    marker: Any = getattr(inspect, "markcoroutinefunction", None)
    if marker is not None:
        marker(do_nothing)
    # asyncio checks this attribute of callables that are no functions; `asyncio_internals.py` has the other
    # private names, but it is in a higher room
    return {**vars(do_nothing), "_is_coroutine": getattr(asyncio.coroutines, "_is_coroutine", None)}


#: The attributes that mark a callable object as a coroutine function.
_MARKER_ATTRIBUTES: Final = _marker_attributes()


class CoroutineFunction:
    """Base of steps and workflows. Such an object counts as a coroutine function if its function is one.

    Otherwise frameworks would call an async step or workflow in a thread, and never await the result.
    """

    def _returns_coroutine(self) -> bool:
        raise NotImplementedError

    @staticmethod
    def is_like(function: Any) -> bool:
        """Returns whether a call of `function` returns an awaitable."""
        if isinstance(function, CoroutineFunction):
            return function._returns_coroutine()
        if inspect.iscoroutinefunction(function):
            return True
        call: Any = getattr(cast("Any", type(function)), "__call__", None)  # noqa: B004
        return inspect.iscoroutinefunction(call)

    if not TYPE_CHECKING:
        # hidden from type checkers, which would otherwise accept every attribute

        def __getattr__(self, name: str) -> Any:
            if name in _MARKER_ATTRIBUTES and self._returns_coroutine():
                return _MARKER_ATTRIBUTES[name]
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


__all__ = ["CoroutineFunction"]
