"""`ProcessAttempt`: one attempt of a process step. The code that waits for its outcome and the thread that
runs it share the object."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from stepfast import _native
from stepfast._runtime.failures import FailureTuple, log_failed_attempt, step_failure

if TYPE_CHECKING:
    from stepfast._processes.child import ChildProcess
    from stepfast._processes.process_step import ProcessStep


class ProcessAttempt:
    """One attempt of a process step. The attempt delivers one outcome to its call, or none if the attempt is
    abandoned.

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
            False if the attempt was abandoned, or will be abandoned because its body may no longer begin.
        """
        with self._lock:
            if self._is_abandoned or not self._call.can_begin:
                return False
            self._child = child
            return True

    def leave(self) -> bool:
        """Releases the attempt from its child. Returns False if the attempt was abandoned."""
        with self._lock:
            self._child = None
            return not self._is_abandoned

    def abandon(self) -> None:
        """Abandons the attempt. If its body runs, kills the child process."""
        with self._lock:
            self._is_abandoned = True
            if self._child is not None:
                self._child.kill()

    def succeed(self, encoded: bytes) -> None:
        """Delivers the encoded value that the body has returned."""
        self._call.deliver(encoded)

    def fail(self, error: Exception, *, is_final: bool = False) -> None:
        """Delivers an error that the body has not raised, such as the death of the child.

        Args:
            error: The error.
            is_final: Whether no further attempt may follow, even if the step allows one; False by default.
        """
        self.error = error
        failure = step_failure(self.step.name, error, self.step.retry_if)
        kind, message, causes, is_retryable, detail = failure
        self._deliver_failure((kind, message, causes, is_retryable and not is_final, detail), error)

    def fail_with(self, failure: FailureTuple, error: BaseException) -> None:
        """Delivers the exception that the body has raised.

        Args:
            failure: The failure to record.
            error: The exception, rebuilt in this process.
        """
        self.error = error
        self._deliver_failure(failure, error)

    def _deliver_failure(self, failure: FailureTuple, error: BaseException) -> None:
        body = (self._branch, self._call, self.step.name, self.step_context[-1])
        pause = self._call.deliver_failure(failure)
        log_failed_attempt(body, error, pause)
