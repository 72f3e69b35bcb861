"""`ProcessAttempt`: one attempt of a process step, shared by the code that awaits its outcome and the thread
that runs it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from stepfast import _native
from stepfast._runtime.failures import FailureTuple, log_failed_attempt, step_failure

if TYPE_CHECKING:
    from stepfast._processes.child import ChildProcess
    from stepfast._processes.process_step import ProcessStep


class ProcessAttempt:
    """One attempt of a process step. It delivers its outcome to the call once, unless it is abandoned.

    Args:
        call: The call of the step.
        step: The step.
        branch: The branch that has called the step.
    """

    def __init__(self, call: _native.Call, step: ProcessStep[Any, Any], branch: _native.Branch) -> None:
        self.step = step
        #: The workflow_id, the name of the workflow, the position of the step, and the number of the attempt.
        self.step_context: tuple[str, str, str | None, int | None] = (
            branch.workflow_id,
            branch.workflow,
            call.path,
            call.attempt,
        )
        self.arguments = b""
        #: The exception with which the attempt failed.
        self.error: BaseException | None = None
        self._call, self._branch = call, branch
        self._lock = threading.Lock()
        self._child: ChildProcess | None = None
        self._is_abandoned = False

    def enter(self, child: ChildProcess) -> bool:
        """Binds the attempt to the child that is about to run its body.

        Returns:
            False if the attempt was abandoned, or is about to be because its body may no longer begin.
        """
        with self._lock:
            if self._is_abandoned or not self._call.can_begin:
                return False
            self._child = child
            return True

    def leave(self) -> bool:
        """Releases the attempt from its child; returns False if it was abandoned."""
        with self._lock:
            self._child = None
            return not self._is_abandoned

    def abandon(self) -> None:
        """Abandons the attempt: a running body is killed, with its child."""
        with self._lock:
            self._is_abandoned = True
            if self._child is not None:
                self._child.kill()

    def succeed(self, encoded: bytes) -> None:
        """Delivers the encoded value that the body has returned."""
        self._call.deliver(encoded)

    def fail(self, error: Exception, *, is_final: bool = False) -> None:
        """Delivers an error from outside of the body.

        Args:
            error: The error.
            is_final: Whether no further attempt may follow, even if the step allows one.
        """
        self.error = error
        failure = step_failure(self.step.name, error, self.step.retry_if)
        kind, message, causes, is_retryable, detail = failure
        self._deliver_failure((kind, message, causes, is_retryable and not is_final, detail), error)

    def fail_with(self, failure: FailureTuple, error: BaseException) -> None:
        """Delivers the failure of the body.

        Args:
            failure: The failure, as it is recorded.
            error: The exception of the failure.
        """
        self.error = error
        self._deliver_failure(failure, error)

    def _deliver_failure(self, failure: FailureTuple, error: BaseException) -> None:
        body = (self._branch, self._call, self.step.name)
        pause = self._call.deliver_failure(failure)
        log_failed_attempt(body, error, self.step_context[-1], pause)
