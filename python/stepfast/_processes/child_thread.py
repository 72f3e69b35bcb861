"""`ChildThread`: a thread that runs attempts, one after another, in a child process of its own."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from stepfast._processes.attempt import ProcessAttempt
from stepfast._processes.child import BodyFailed, BodyReturned, ChildEnded, ChildProcess, StepUnavailable
from stepfast._processes.exit_messages import process_died
from stepfast._runtime.threads.time_limit import attempt_timeout
from stepfast.errors import InvalidArgument

if TYPE_CHECKING:
    from stepfast._processes.pool import ProcessPool


class ChildThread:
    """A thread that runs attempts in its child process, and starts a new child after one has died."""

    def __init__(self, pool: ProcessPool, number: int) -> None:
        self._pool = pool
        self._child: ChildProcess | None = None
        self._thread = threading.Thread(target=self._work, name=f"stepfast-process-{number}", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Waits until the thread and its child have ended."""
        self._thread.join()

    def _work(self) -> None:
        try:
            while (attempt := self._pool.take_next()) is not None:
                try:
                    self._run_attempt(attempt)
                except Exception as error:
                    # for example, the machine is out of processes or memory: the next attempt gets a new
                    # child
                    self._close_child()
                    if attempt.leave():
                        attempt.fail(error)
                finally:
                    self._pool.finish(attempt)
                    del attempt
        finally:
            self._close_child()

    def _close_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.close()

    def _run_attempt(self, attempt: ProcessAttempt) -> None:
        step = attempt.step
        is_fresh = self._child is None
        child = self._child = self._child or ChildProcess()
        if not attempt.enter(child):
            return
        outcome = child.run_step(attempt)
        is_awaited = attempt.leave()
        if isinstance(outcome, ChildEnded):
            self._child = None
        elif outcome is None:
            self._close_child()
        if not is_awaited:
            return
        match outcome:
            case BodyReturned(encoded):
                attempt.succeed(encoded)
            case BodyFailed(failure, error, is_last):
                if is_last:
                    self._close_child()
                attempt.fail_with(failure, error)
            case StepUnavailable(reason, is_final):
                attempt.fail(
                    InvalidArgument(f"step {step.name!r} cannot run in a process: {reason}"),
                    is_final=is_final,
                )
            case ChildEnded(_, has_begun) if not has_begun and not is_fresh:
                # the child died before this body began, perhaps because of an earlier body: this attempt gets
                # a new child
                self._run_attempt(attempt)
            case ChildEnded(code, has_begun):
                attempt.fail(process_died(step.name, code, has_begun=has_begun))
            case None:
                assert step.timeout is not None
                attempt.fail(attempt_timeout(step.timeout))
