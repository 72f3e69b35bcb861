"""The private names of asyncio, and the internals of CPython, on which the package relies.

"All versions" below are those that were checked: CPython 3.11.7, 3.12.1 and 3.13.0.
`tests/event_loop/test_asyncio_internals.py` fails if a name is gone or behaves differently.

Two uses are in lower rooms: `asyncio.coroutines._is_coroutine` in `_validation/coroutine_function.py`, and
`gc.get_referents` in `_values/msgpack_options.py`. The native module uses `asyncio._get_running_loop` and
`asyncio.tasks._current_tasks`.
"""

from __future__ import annotations

import asyncio
import gc
import operator
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from collections.abc import Set as AbstractSet
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, GeneratorType, MethodType
from typing import Any, Final, cast

#: Returns the event loop that runs in this thread, or None.
#:
#: Relies on `asyncio._get_running_loop`, which raises nothing where no loop runs. All versions have it.
current_loop: Final = asyncio._get_running_loop

#: The name of the attribute of a task that holds the future for which the task waits. The attribute is None
#: while the task runs or is ready.
#:
#: The tasks of asyncio have the attribute in all versions. A task of the program's own class may lack it.
#: This constant is no function, because functions are slower and each wait of an execution may read the
#: attribute.
FUT_WAITER: Final = "_fut_waiter"

#: The class of the future that `asyncio.gather` returns; an empty tuple, for `isinstance`, if there is none.
#:
#: All versions have it.
GATHERING_FUTURE: Final[Any] = getattr(asyncio.tasks, "_GatheringFuture", ())

#: Returns the futures for which an `asyncio.gather` waits.
#:
#: Relies on the attribute `_children` of a `GATHERING_FUTURE`, which is a list. All versions have it.
gathered_futures: Final[Callable[[Any], list[asyncio.Future[Any]]]] = operator.attrgetter("_children")

#: The code objects of asyncio's functions that wait until other tasks act.
#:
#: Relies on the code objects of these functions, some of which are private. All versions have all of them
#: except `_aexit`, which none of the checked versions has, but later ones have.
COOPERATIVE_WAITS: Final[frozenset[CodeType]] = frozenset(
    getattr(place, name).__code__
    for place, names in (
        (asyncio.Queue, ("get", "put")),
        (asyncio.Lock, ("acquire",)),
        (asyncio.Event, ("wait",)),
        (asyncio.Condition, ("wait",)),
        (asyncio.Semaphore, ("acquire",)),
        (asyncio.TaskGroup, ("__aexit__", "_aexit")),
        (asyncio.tasks, ("wait_for", "_wait", "_cancel_and_wait")),
    )
    for name in names
    if hasattr(place, name)
)

_FRAME_TYPES: Final[tuple[type[Any], ...]] = (CoroutineType, GeneratorType, AsyncGeneratorType)

#: The class of the iterator that `asyncio.as_completed` returns from 3.13 on; None up to 3.12.
_AS_COMPLETED_ITERATOR: Final[Any] = getattr(asyncio.tasks, "_AsCompletedIterator", None)
#: The code object in which `asyncio.as_completed` makes tasks from a set.
#:
#: Up to 3.12 this is the generator `as_completed`. From 3.13 on it is the constructor of the iterator.
_UNORDERED_CODE: Final[CodeType] = (
    _AS_COMPLETED_ITERATOR.__init__ if _AS_COMPLETED_ITERATOR else asyncio.as_completed
).__code__

#: Names of the functions whose frames are between `asyncio.as_completed` and the task factory.
#:
#: Only 3.11 has `_ensure_future`, and a frame for the comprehension of a set.
_TASK_CREATION_FRAMES: Final = frozenset(
    {"create_task", "ensure_future", "_ensure_future", "<setcomp>", "__call__"}
)


def _find_aclose_type() -> type:
    async def generator() -> AsyncGenerator[None]:
        yield

    aclose = generator().aclose()
    # from 3.13 on Python warns if the awaitable is neither awaited nor closed
    aclose.close()
    return type(aclose)


#: The type of the awaitable that closes an async generator.
#:
#: Relies on the event loop, which makes a task of that awaitable when the garbage collector finds the
#: generator. No version has a public name for the type.
ACLOSE_TYPE: Final = _find_aclose_type()


def await_chain(code: Any) -> Iterator[Any]:
    """Yields the code that a task runs: its coroutine, the object that the coroutine awaits, and so on.

    Relies on `cr_await`, `gi_yieldfrom` and `ag_await`, which are documented, and on `gc.get_referents`. In
    all versions an awaited async generator, or an object with an `__await__`, refers to the awaited code.
    """
    while code is not None:
        yield code
        awaited = next(
            (getattr(code, name) for name in ("cr_await", "gi_yieldfrom", "ag_await") if hasattr(code, name)),
            None,
        )
        if awaited is not None and not _has_frame(awaited):
            # the object has no attribute for the awaited code
            referents: list[Any] = gc.get_referents(awaited)
            awaited = next(filter(_has_frame, referents), None)
        code = awaited


def _has_frame(code: Any) -> bool:
    return isinstance(code, _FRAME_TYPES)


def code_of(code: Any) -> CodeType | None:
    """Returns the code object of a coroutine or generator; None for any other object.

    Relies on `cr_code`, `gi_code` and `ag_code`, which are documented. All versions have them.
    """
    names = ("cr_code", "gi_code", "ag_code")
    return next((getattr(code, name) for name in names if hasattr(code, name)), None)


def is_time_limited(code: Any) -> bool:
    """Returns whether the code is inside an `asyncio.timeout`, or calls a function of asyncio with a timeout.

    Relies on the local variable `timeout` of `COOPERATIVE_WAITS`, and on `gc.get_referents`. In all versions
    a coroutine in an `async with` refers to the bound method `__aexit__` of the context manager.
    """
    if code_of(code) in COOPERATIVE_WAITS and code.cr_frame.f_locals.get("timeout") is not None:
        return True
    return any(
        isinstance(referent, MethodType)
        and isinstance(referent.__self__, asyncio.Timeout)
        and referent.__self__.when() is not None
        for referent in gc.get_referents(code)
    )


def is_task_order_undefined() -> bool:
    """Returns whether `asyncio.as_completed` creates the task for which a task factory calls this
    function.

    `as_completed` creates tasks in the order of a set, which is the order of memory addresses. Relies on
    `sys._getframe`, and on the frames of `_TASK_CREATION_FRAMES` between `as_completed` and the factory. Only
    the `__call__` of the factory may call this function, because the number of frames counts.
    """
    frame: FrameType | None = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_code.co_name in _TASK_CREATION_FRAMES:
        frame = frame.f_back
    return frame is not None and frame.f_code is _UNORDERED_CODE


def silence_destroyed_task(task: asyncio.Future[Any]) -> None:
    """Prevents the warning of asyncio that a task was destroyed while it was pending.

    Relies on the attribute `_log_destroy_pending`, which the tasks of asyncio have in all versions. A task of
    another class ignores it.
    """
    cast("Any", task)._log_destroy_pending = False


def function_code(function: Any) -> CodeType | None:
    """Returns the code object of a function; None for a callable that is no function of Python.

    Relies on `__code__`, which is documented. All versions have it.
    """
    return getattr(function, "__code__", None)


def is_calling(sought: FrameType, task: asyncio.Task[Any] | None, entry_codes: AbstractSet[CodeType]) -> bool:
    """Returns whether a frame is among the callers of the function that calls this one.

    Relies on `sys._getframe`, and on the `cr_frame` of the coroutine that a task runs: while the task runs,
    this frame is among those of the thread. All versions have both.

    Args:
        sought: The frame.
        task: The running task; None outside of tasks. The comparison ends with the task's outermost frame.
        entry_codes: Code objects. The comparison also ends with the innermost frame that runs one of them.
    """
    task_frame = getattr(cast("Any", task.get_coro()), "cr_frame", None) if task is not None else None
    frame: FrameType | None = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if frame is sought:
            return True
        if frame is task_frame or frame.f_code in entry_codes:
            return False
        frame = frame.f_back
    return False


def calling_frame_outside(folder: str) -> FrameType | None:
    """Returns the innermost frame whose code is in no file below a folder; None if there is none.

    Relies on `sys._getframe`. All versions have it.

    Args:
        folder: The path of the folder, with a separator at its end.
    """
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_code.co_filename.startswith(folder):
        frame = frame.f_back
    return frame
