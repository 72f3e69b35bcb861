"""The exchanges of clients and engines with executions: messages, events, tokens, questions and streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stepfast._engine.messaging.streams import StreamValue, stream_values
from stepfast._engine.records import Event
from stepfast._validation.durations import Duration
from stepfast._workflow.messaging.messages import DEFAULT_TOPIC, Sent

if TYPE_CHECKING:
    from stepfast._engine.open_engine import OpenEngine


class Exchanges:
    """The operations of a client or an engine that exchange values with executions."""

    _open_engine: OpenEngine

    def send(
        self,
        workflow_id: str,
        value: Any,
        *,
        topic: str = DEFAULT_TOPIC,
        message_id: str | None = None,
        keep: bool = False,
    ) -> Sent:
        """Sends a message to an execution, in whichever process it runs, waits or is queued. The code of the
        workflow receives it by `stepfast.receive`. When the call returns, the message is durable.

        Args:
            workflow_id: The workflow_id of the receiver.
            value: The value, of up to 64 KiB encoded.
            topic: The topic under which the receiver waits; `default` by default.
            message_id: An id of the message. A second message with this id to the same execution is not sent
                again, and the call succeeds. None by default.
            keep: Whether the message is kept if no execution has the workflow_id yet. An execution with this
                id that is started later receives it; kept messages have no time limit. If the same message is
                sent again, keep it again, so that its `message_id` is recognised. False by default.

        Returns:
            `sent`; or `sent before`, if a message with this `message_id` was sent before; or `kept`.

        Raises:
            NotFound: There is no such execution.
            ExecutionEnded: The execution has ended.
            InvalidArgument: No message can have the topic or the id, the value is too large, or the message
                cannot be kept for the workflow_id.
            EncodeError: The value cannot be recorded.
        """
        return self._open_engine.send(workflow_id, value, topic, message_id, keep).wait()

    def get_event(self, workflow_id: str, name: str, *, timeout: Duration | None = None) -> Any:
        """Waits until an execution has set an event by `stepfast.set_event`, and returns its value. If the
        event was set several times, the call returns the value that was set last.

        Args:
            workflow_id: The workflow_id of the execution.
            name: The name of the event.
            timeout: The longest time to wait, as seconds or as a `timedelta`; no limit by default. With 0,
                the call returns the value only if it was set before.

        Returns:
            The value of the event, or None after the timeout.

        Raises:
            NotFound: There is no such execution.
            ExecutionEnded: The execution has ended, and has not set the event.
            InvalidArgument: No event can have the name, or the timeout is negative.
        """
        return self._open_engine.get_event(workflow_id, name, timeout).wait()

    def events(self, workflow_id: str) -> list[Event]:
        """Returns all events that an execution has set, in their order: also values that a later one of the
        same name has replaced.

        Args:
            workflow_id: The workflow_id of the execution.

        Raises:
            NotFound: There is no such execution.
        """
        return self._open_engine.events(workflow_id).wait()

    def read_stream(self, workflow_id: str, stream: str, *, offset: int = 0) -> Iterator[StreamValue]:
        """Reads a stream that an execution writes by `stepfast.write_stream`, also while it grows: `for value
        in engine.read_stream(…)`.

        The iterator yields the values in their order, each when it is durable, and waits for the next one.
        It ends when the stream is closed, or when the execution has ended. An iterator may be left in the
        middle: a later call continues with `offset=last.offset + 1`.

        Args:
            workflow_id: The workflow_id of the execution.
            stream: The name of the stream.
            offset: The offset of the first value to read; 0 by default.

        Raises:
            InvalidArgument: No stream can have the name, or the offset is no whole number or negative.
            NotFound: There is no such execution. Raised by the iterator.
            EngineClosed: The engine was closed during the wait. Raised by the iterator.
        """
        reader = self._open_engine.read_stream(workflow_id, stream, offset)
        return stream_values(reader, self._open_engine)

    def complete_token(self, token: str, value: Any) -> None:
        """Completes a token that the code of a workflow has created by `create_token`: the wait for the token
        returns the value. One answer counts, also among several processes. When the call returns, the answer
        is durable.

        Args:
            token: The id of the token: `token.id`.
            value: The value, of up to 64 KiB encoded.

        Raises:
            TokenAnswered: The token has an answer already.
            ExecutionEnded: The execution has ended without an answer.
            InvalidArgument: No execution has created the token, or the value is too large.
            EncodeError: The value cannot be recorded.
        """
        self._open_engine.complete_token(token, value).wait()

    def fail_token(self, token: str, error: BaseException | str) -> None:
        """Fails a token: the wait for the token raises the error. Otherwise like `complete_token`.

        Args:
            token: The id of the token: `token.id`.
            error: The exception, or a text, for which the wait raises `WorkflowFailed`.

        Raises:
            TokenAnswered: The token has an answer already.
            ExecutionEnded: The execution has ended without an answer.
            InvalidArgument: No execution has created the token, or the error is neither an exception nor a
                text.
        """
        self._open_engine.fail_token(token, error).wait()

    def ask(
        self,
        workflow_id: str,
        value: Any,
        *,
        topic: str = DEFAULT_TOPIC,
        timeout: Duration | None = None,
        message_id: str | None = None,
    ) -> Any:
        """Asks an execution a question, in whichever process it runs, waits or is queued, and waits for the
        answer. The code of the workflow receives the question by `stepfast.receive_question`.

        Args:
            workflow_id: The workflow_id of the execution.
            value: The value, of up to 64 KiB encoded.
            topic: The topic under which the execution waits; `default` by default.
            timeout: The longest time to wait for the answer, as seconds or as a `timedelta`; no limit by
                default. The question stays after a timeout.
            message_id: An id of the question. A second question with this id to the same execution is not
                asked again; the call waits for the answer to the first one. None by default.

        Returns:
            The answer, or None after the timeout.

        Raises:
            NotFound: There is no such execution.
            ExecutionEnded: The execution has ended, or ends without an answer.
            InvalidArgument: No question can have the topic or the id, the value is too large, or the timeout
                is negative.
            EncodeError: The value cannot be recorded.
            Exception: The exception with which the execution refuses the question; `WorkflowFailed` for a
                text.
        """
        return self._open_engine.ask(workflow_id, value, topic, timeout, message_id).wait()
