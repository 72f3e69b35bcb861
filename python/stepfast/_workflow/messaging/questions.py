"""Questions in the code of workflows."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from typing import Any, Generic, TypeVar, cast

from stepfast import _native
from stepfast._runtime.branch import current_branch
from stepfast._runtime.failures import given_failure
from stepfast._runtime.waiting import await_or_wait, wait_for_call
from stepfast._validation import bounds
from stepfast._validation.durations import Duration, to_timeout
from stepfast._workflow.messaging.messages import DEFAULT_TOPIC
from stepfast.errors import InvalidArgument

T = TypeVar("T", covariant=True)


class Question(Generic[T]):
    """A question that the code of a workflow has received by `receive_question`. `answer` or `refuse` answers
    it, once.

    Attributes:
        value: The value that was asked, of type `T`.
    """

    __slots__ = ("_native", "value")

    def __init__(self, native: _native.Question) -> None:
        self._native = native
        #: The value that was asked.
        self.value: T = native.value

    def answer(self, value: Any) -> Awaitable[None]:
        """Answers the question: `question.answer(…)` in sync code, `await question.answer(…)` in async code.

        The answer is durable before the next step begins. A replay sends no second answer.

        Args:
            value: The answer.

        Returns:
            In async code an object to await. In sync code None.

        Raises:
            InvalidArgument: The caller is not the code of a workflow, or the question was answered before.
            EncodeError: The value cannot be recorded.
        """
        branch = _own_branch("answer")
        return _done(branch, self._native.answer(branch, value))

    def refuse(self, error: BaseException | str) -> Awaitable[None]:
        """Answers the question with an error: the call of `ask` raises it. Write `question.refuse(…)` in sync
        code, and `await question.refuse(…)` in async code.

        Args:
            error: The exception, or a text, for which the call of `ask` raises `WorkflowFailed`.

        Returns:
            In async code an object to await. In sync code None.

        Raises:
            InvalidArgument: The caller is not the code of a workflow, the question was answered before, or
                the error is neither an exception nor a text.
        """
        failure = given_failure(error)
        branch = _own_branch("refuse")
        return _done(branch, self._native.refuse(branch, failure))

    def __repr__(self) -> str:
        return f"Question({self.value!r})"

    def __rich_repr__(self) -> Iterator[Any]:
        yield self.value


def receive_question(topic: str = DEFAULT_TOPIC, *, timeout: Duration | None = None) -> Any:
    """Waits for the next question to this execution: `question = receive_question()` in sync code,
    `question = await receive_question()` in async code. Only the code of a workflow can receive questions.

    Engines, clients, handles and other workflows ask by `ask`. Questions and other messages have separate
    topics: `receive` receives no questions. Otherwise like `receive`.

    Args:
        topic: Only questions of this topic are received; `default` by default.
        timeout: The longest time to wait, as seconds or as a `timedelta`; no limit by default.

    Returns:
        In async code an object to await. In sync code a `Question`, or None after the timeout.

    Raises:
        InvalidArgument: The caller is not the code of a workflow, no question can have the topic, or the
            timeout is negative.
    """
    bounds.check_name("topic", topic)
    seconds = to_timeout("timeout", timeout)
    branch = current_branch()
    if branch is None:
        raise InvalidArgument(
            "receive_question is called outside of the code of a workflow, such as in a step: receive in the "
            "workflow, and answer there"
        )
    call = _native.Question.receive(branch, topic, seconds)
    return _receive_async(call) if branch.is_on_loop else _question_or_none(wait_for_call(call))


def ask(workflow_id: str, value: Any, *, topic: str = DEFAULT_TOPIC, timeout: Duration | None = None) -> Any:
    """Asks another execution a question from the code of a workflow, and waits for the answer:
    `answer = ask(…)` in sync code, `answer = await ask(…)` in async code. Everywhere else use `engine.ask`.

    The question is asked once, and the answer is recorded: a replay returns the same one. The wait is
    durable: while it lasts, the execution takes neither a thread nor memory after the engine's
    `suspend_after`.

    Args:
        workflow_id: The workflow_id of the other execution.
        value: The value, of up to 64 KiB encoded.
        topic: The topic under which the other execution waits; `default` by default.
        timeout: The longest time to wait for the answer, as seconds or as a `timedelta`; no limit by default.

    Returns:
        In async code an object to await. In sync code the answer, or None after the timeout.

    Raises:
        InvalidArgument: The caller is not the code of a workflow, no question can have the topic, or the
            timeout is negative.
        NotFound: There is no such execution.
        ExecutionEnded: The execution has ended, or ends without an answer.
        EncodeError: The value cannot be recorded.
        Exception: The exception with which the other execution refuses the question; `WorkflowFailed` for a
            text.
    """
    bounds.check_storable_text("workflow_id", workflow_id)
    bounds.check_name("topic", topic)
    seconds = to_timeout("timeout", timeout)
    branch = current_branch()
    if branch is None:
        raise InvalidArgument(
            "ask is called outside of the code of a workflow: call engine.ask or handle.ask there"
        )
    call = _native.Question.ask(branch, workflow_id, value, topic, seconds)
    return await_or_wait(branch, call)


def _own_branch(operation: str) -> _native.Branch:
    branch = current_branch()
    if branch is None:
        raise InvalidArgument(
            f"question.{operation} is called outside of the code of a workflow: a step returns the value, "
            "and its workflow answers"
        )
    return branch


def _done(branch: _native.Branch, call: _native.Call) -> Awaitable[None]:
    return cast("Awaitable[None]", await_or_wait(branch, call))


def _question_or_none(native: _native.Question | None) -> Question[Any] | None:
    return None if native is None else Question[Any](native)


async def _receive_async(call: _native.Call) -> Question[Any] | None:
    return _question_or_none(await call)


__all__ = ["Question", "ask", "receive_question"]
