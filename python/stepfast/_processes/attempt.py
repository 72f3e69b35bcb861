"""`Attempt`: one attempt of a process step, between who waits for its outcome and the slot that makes it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from stepfast import _native
from stepfast._runtime.failures import Failure, failure_in_step

if TYPE_CHECKING:
    from stepfast._processes.child import Child
    from stepfast._processes.process_step import ProcessStep


class Attempt:
    """One attempt of a process step. It leaves its outcome with the call, once, unless it is given up."""

    def __init__(
        self, call: _native.Call, step: ProcessStep[Any, Any], where: tuple[str, str, str | None]
    ) -> None:
        self.step = step
        #: The workflow_id, the name of the workflow, and the position of the step.
        self.where = where
        self.arguments = b""
        #: What it failed with.
        self.error: BaseException | None = None
        self._call = call
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._is_given_up = False

    def enter(self, child: Child) -> bool:
        """It is about to be made in `child`; false if it has been given up, or if its body may not begin any
        more: then it is about to be given up."""
        with self._lock:
            if self._is_given_up or not self._call.may_begin:
                return False
            self._child = child
            return True

    def leave(self) -> bool:
        """It is not in its child any more; false if it has been given up."""
        with self._lock:
            self._child = None
            return not self._is_given_up

    def give_up(self) -> None:
        """Nobody waits for it any more: a body under way is killed, with its child."""
        with self._lock:
            self._is_given_up = True
            if self._child is not None:
                self._child.kill()

    def succeed(self, encoded: bytes) -> None:
        """The body has returned the value with this encoding."""
        self._call.deliver(encoded)

    def fail(self, error: Exception, *, is_final: bool = False) -> None:
        """The attempt has failed outside of the body; it is tried again if the step says so, and it is not
        final."""
        self.error = error
        failure = failure_in_step(self.step.name, error, self.step.retry_if)
        kind, message, causes, is_retryable, detail = failure
        self._call.deliver_failure((kind, message, causes, is_retryable and not is_final, detail))

    def fail_with(self, failure: Failure, error: BaseException) -> None:
        """The body has failed, as it is recorded in `failure`; raised again, that is `error`."""
        self.error = error
        self._call.deliver_failure(failure)
