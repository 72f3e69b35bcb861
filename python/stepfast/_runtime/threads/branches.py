"""Branches of sync workflows: each in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any

from stepfast import _native
from stepfast._runtime.branch import branch_here, here_var, unwinding
from stepfast.errors import Cancelled, Suspended

#: Told how many items are done, and how many there are.
Progress = Callable[[int, int], object]


class _Fan:
    """Calls of a function, carried out by threads that take one item after the other."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        items: Sequence[Any],
        branch: _native.Branch | None,
        concurrency: int,
        progress: Progress | None,
    ) -> None:
        self._function, self._items, self._progress = function, items, progress
        self._done = 0
        self._outcomes: list[Any] = [None] * len(items)
        self._failures: dict[int, BaseException] = {}
        self._lock = threading.Lock()
        self._next = self._left = min(concurrency, len(items))
        self._branch = branch
        # those under way: they get their places in the order of the items
        self._branches: dict[int, _native.Branch] = {}
        for i in range(self._next):
            self._begin(i)
        # not before: without a branch that counts, the execution would seem to be at rest
        self._join = branch.join() if branch is not None else None

    def run(self) -> list[Any]:
        """Carries all of them out; the outputs, or the exception of the first one that failed."""
        branch = self._branch
        # an execution that its caller runs has nobody else to go on with it
        is_driving = branch is not None and branch.is_inline
        threads = [
            threading.Thread(target=copy_context().run, args=(self._work, i), name=f"stepfast-branch-{i}")
            for i in range(0 if is_driving else 1, self._next)
        ]
        for thread in threads:
            thread.daemon = True
            thread.start()
        if branch is not None and self._join is not None and is_driving:
            branch.drive(self._join)
        else:
            copy_context().run(self._work, 0)
        for thread in threads:
            thread.join()
        for raised in self._failures.values():
            if not isinstance(raised, Exception | Suspended | Cancelled):
                # the program is told to end
                raise raised
        if branch is not None and branch.stopped:
            raise unwinding(branch.stopped)
        if self._failures:
            raise self._failures[min(self._failures)]
        return self._outcomes

    def _work(self, i: int | None) -> None:
        while i is not None:
            if self._branch is not None:
                here_var.set(self._branches[i])
            try:
                self._outcomes[i] = self._function(self._items[i])
                self._tell()
            except BaseException as raised:
                self._failures[i] = raised
            i = self._following(i)

    def _following(self, ended: int) -> int | None:
        """Ends one call, and begins the next that nobody has begun."""
        with self._lock:
            is_over = bool(self._failures) or self._next == len(self._items)
            if self._branch is not None and self._branch.stopped:
                is_over = True
            following = None if is_over else self._next
            if following is not None:
                self._next += 1
            # before the old one ends: at no time may there seem to be less to wait for
            if following is None:
                self._left -= 1
                if self._left == 0 and self._join is not None:
                    self._join.end()
            else:
                self._begin(following)
            if self._branch is not None:
                self._branches.pop(ended).end()
            return following

    def _tell(self) -> None:
        if self._progress is not None:
            with self._lock:
                self._done += 1
                if self._branch is None or not self._branch.is_replaying:
                    self._progress(self._done, len(self._items))

    def _begin(self, i: int) -> None:
        if self._branch is not None:
            self._branches[i] = branch = self._branch.reserve()
            branch.begin()


def run_side_by_side(
    function: Callable[[Any], Any],
    items: Sequence[Any],
    concurrency: int,
    progress: Progress | None = None,
) -> list[Any]:
    """Calls a function for every item in threads, so many at a time; in a workflow each is a branch of it.

    Raises:
        BaseException: What the first of them that failed has raised, after all that were begun have ended.
    """
    if not items:
        return []
    return _Fan(function, items, branch_here(), concurrency, progress).run()
