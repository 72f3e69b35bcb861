"""Concurrent calls in threads. In a sync workflow each call is a branch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any

from stepfast import _native
from stepfast._runtime.branch import current_branch, current_code, unwind_exception
from stepfast.errors import Cancelled, Suspended

#: A function that receives the number of finished items and the number of all items.
Progress = Callable[[int, int], object]


class _ParallelCalls:
    """Calls of one function. Threads make the calls, and each thread takes one item after the other."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        items: Sequence[Any],
        branch: _native.Branch | None,
        concurrency: int,
        progress: Progress | None,
    ) -> None:
        self._function, self._items, self._progress = function, items, progress
        self._done_count = 0
        self._outcomes: list[Any] = [None] * len(items)
        self._failures: dict[int, BaseException] = {}
        self._lock = threading.Lock()
        self._next = self._active_threads = min(concurrency, len(items))
        self._branch = branch
        # the branches of the running calls, by the index of the item; they are reserved in the order of the
        # items
        self._branches: dict[int, _native.Branch] = {}
        for i in range(self._next):
            self._begin(i)
        # last, after the first branches have begun: without an active branch the execution would seem to be
        # blocked
        self._join = branch.join() if branch is not None else None

    def run(self) -> list[Any]:
        """Makes all calls. Returns the outputs, or raises the exception of the first item whose call
        failed."""
        branch = self._branch
        # if the caller runs the execution in its own thread, no other thread drives it
        drives_execution = branch is not None and branch.is_inline
        threads = [
            threading.Thread(target=copy_context().run, args=(self._work, i), name=f"stepfast-branch-{i}")
            for i in range(0 if drives_execution else 1, self._next)
        ]
        for thread in threads:
            thread.daemon = True
            thread.start()
        if branch is not None and self._join is not None and drives_execution:
            branch.drive(self._join)
        else:
            copy_context().run(self._work, 0)
        for thread in threads:
            thread.join()
        for raised in self._failures.values():
            if not isinstance(raised, Exception | Suspended | Cancelled):
                # the exception is, for example, a KeyboardInterrupt or SystemExit, which ends the program
                raise raised
        if branch is not None and branch.stop_code:
            raise unwind_exception(branch.stop_code)
        if self._failures:
            raise self._failures[min(self._failures)]
        return self._outcomes

    def _work(self, i: int | None) -> None:
        while i is not None:
            if self._branch is not None:
                current_code.set(self._branches[i])
            try:
                self._outcomes[i] = self._function(self._items[i])
                self._report_progress()
            except BaseException as raised:
                self._failures[i] = raised
            i = self._finish_and_begin_next(i)

    def _finish_and_begin_next(self, finished: int) -> int | None:
        """Ends the branch of a finished call, and begins the branch of the next item. Returns the index of
        the next item, or None if no further call begins."""
        with self._lock:
            has_ended = bool(self._failures) or self._next == len(self._items)
            if self._branch is not None and self._branch.stop_code:
                has_ended = True
            next_index = None if has_ended else self._next
            if next_index is not None:
                self._next += 1
            # the next branch begins before the finished one ends, so that the number of active branches does
            # not drop in between
            if next_index is None:
                self._active_threads -= 1
                if self._active_threads == 0 and self._join is not None:
                    self._join.end()
            else:
                self._begin(next_index)
            if self._branch is not None:
                self._branches.pop(finished).end()
            return next_index

    def _report_progress(self) -> None:
        if self._progress is not None:
            with self._lock:
                self._done_count += 1
                if self._branch is None or not self._branch.is_replaying:
                    self._progress(self._done_count, len(self._items))

    def _begin(self, i: int) -> None:
        if self._branch is not None:
            self._branches[i] = branch = self._branch.reserve()
            branch.begin()


def run_in_threads(
    function: Callable[[Any], Any],
    items: Sequence[Any],
    concurrency: int,
    progress: Progress | None = None,
) -> list[Any]:
    """Calls a function for every item in threads, with at most `concurrency` calls at a time.

    In a workflow each call is a branch.

    Args:
        function: The function, which is called with one item.
        items: The items.
        concurrency: The maximum number of calls at a time.
        progress: A function that is called after each call, but not while a replay repeats recorded outcomes.
            None by default.

    Returns:
        The outputs, in the order of the items.

    Raises:
        BaseException: The exception of the first item whose call failed. It is raised after all calls that
            had begun have ended.
    """
    if not items:
        return []
    return _ParallelCalls(function, items, current_branch(), concurrency, progress).run()
