"""Branches of sync workflows: each in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from stepfast import _native
from stepfast.branch import branch_here, here_var, unwinding
from stepfast.errors import Cancelled, Suspended


class _Fan:
    """Calls, carried out by threads that take one after the other."""

    def __init__(
        self, calls: list[Callable[[], Any]], branch: _native.Branch | None, concurrency: int
    ) -> None:
        self._calls = calls
        self._outcomes: list[Any] = [None] * len(calls)
        self._failures: dict[int, BaseException] = {}
        self._lock = threading.Lock()
        self._next = self._left = min(concurrency, len(calls))
        self._branch = branch
        # all have their places before any of them begins
        self._branches = [branch.reserve() for _ in calls] if branch is not None else []
        for begun in self._branches[: self._next]:
            begun.begin()
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
            if self._branches:
                here_var.set(self._branches[i])
            try:
                self._outcomes[i] = self._calls[i]()
            except BaseException as raised:
                self._failures[i] = raised
            i = self._following(i)

    def _following(self, ended: int) -> int | None:
        """Ends one call, and begins the next that nobody has begun."""
        with self._lock:
            is_over = bool(self._failures) or self._next == len(self._calls)
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
            elif self._branches:
                self._branches[following].begin()
            if self._branches:
                self._branches[ended].end()
            return following


def run_side_by_side(calls: list[Callable[[], Any]], concurrency: int) -> list[Any]:
    """Carries calls out in threads, so many at a time; in a workflow each is a branch of it.

    Raises:
        BaseException: What the first of them that failed has raised, after all that were begun have ended.
    """
    if not calls:
        return []
    return _Fan(calls, branch_here(), concurrency).run()
