"""How asyncio and `inspect` see that calling something returns what is to be awaited."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, Final, cast


def _marks() -> dict[str, Any]:
    def marked() -> None: ...

    # there from Python 3.12 on
    mark: Any = getattr(inspect, "markcoroutinefunction", None)
    if mark is not None:
        mark(marked)
    # what asyncio looks for in other callables than functions
    return {**vars(marked), "_is_coroutine": getattr(asyncio.coroutines, "_is_coroutine", None)}


#: The attributes of what is a coroutine function, and no function.
_MARKS: Final = _marks()


class CoroutineFunction:
    """Steps and workflows that are async: coroutine functions, as their functions are. Frameworks would call
    others in a thread, and await nothing."""

    def _returns_coroutine(self) -> bool:
        raise NotImplementedError

    @staticmethod
    def is_like(called: Any) -> bool:
        """Returns true if calling it returns what is to be awaited."""
        if isinstance(called, CoroutineFunction):
            return called._returns_coroutine()
        if inspect.iscoroutinefunction(called):
            return True
        call: Any = getattr(cast("Any", type(called)), "__call__", None)  # noqa: B004
        return inspect.iscoroutinefunction(call)

    if not TYPE_CHECKING:
        # checkers would take any attribute for one that is there

        def __getattr__(self, name: str) -> Any:
            if name in _MARKS and self._returns_coroutine():
                return _MARKS[name]
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


__all__ = ["CoroutineFunction"]
