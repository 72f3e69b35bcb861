"""`Slot`: a thread that makes attempts, one after the other, in a child process of its own."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from stepfast._processes.attempt import Attempt
from stepfast._processes.child import Child, Ended, Failed, Returned, Unfit
from stepfast._processes.exit_messages import died
from stepfast._runtime.threads.time_limit import too_long
from stepfast.errors import Invalid

if TYPE_CHECKING:
    from stepfast._processes.pool import Processes


class Slot:
    """Makes attempts in its child, and has another child when one has died."""

    def __init__(self, pool: Processes, number: int) -> None:
        self._pool = pool
        self._child: Child | None = None
        self._thread = threading.Thread(target=self._work, name=f"stepfast-process-{number}", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Waits until it has ended, and its child with it."""
        self._thread.join()

    def _work(self) -> None:
        try:
            while (attempt := self._pool.next()) is not None:
                try:
                    self._make(attempt)
                except Exception as error:
                    # no more processes, no more memory: the next attempt gets a fresh child
                    self._drop()
                    if attempt.leave():
                        attempt.fail(error)
                finally:
                    self._pool.forget(attempt)
                    del attempt
        finally:
            self._drop()

    def _drop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.close()

    def _make(self, attempt: Attempt) -> None:
        step = attempt.step
        is_fresh = self._child is None
        child = self._child = self._child or Child()
        if not attempt.enter(child):
            return
        outcome = child.carry_out(attempt)
        is_wanted = attempt.leave()
        if isinstance(outcome, Ended):
            self._child = None
        elif outcome is None:
            self._drop()
        if not is_wanted:
            return
        match outcome:
            case Returned(encoded):
                attempt.succeed(encoded)
            case Failed(failure, error, is_last):
                if is_last:
                    self._drop()
                attempt.fail_with(failure, error)
            case Unfit(reason, is_final):
                attempt.fail(
                    Invalid(f"step {step.name!r} cannot run in a process: {reason}"), is_final=is_final
                )
            case Ended(_, has_begun) if not has_begun and not is_fresh:
                # it was dead already, or died of what earlier bodies had left in it: this one has not begun
                self._make(attempt)
            case Ended(code, has_begun):
                attempt.fail(died(step.name, code, has_begun=has_begun))
            case None:
                assert step.timeout is not None
                attempt.fail(too_long(step.timeout))
