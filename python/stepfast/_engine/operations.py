"""The operations that sync and async engines and clients share."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Generator, Iterable
from datetime import datetime
from typing import Any, Generic, TypeVar

from stepfast import _native
from stepfast._engine.dead_letters import DeadLetter, dead_letters
from stepfast._engine.filter import BulkResult, Filter, filter_tuple, workflow_name
from stepfast._engine.handle import outcomes
from stepfast._engine.messaging.streams import check_reading
from stepfast._engine.records import (
    Event,
    Execution,
    ExecutionOutcome,
    Record,
    events_of,
    execution_of,
    outcome_of,
    record_of,
)
from stepfast._engine.scheduling.schedule import Schedule, check_schedule_name, checked_schedule
from stepfast._engine.scheduling.schedule_info import ScheduleInfo, schedule_info, schedule_infos
from stepfast._engine.workers import WorkerOverview, worker_overview
from stepfast._options.queue import Queue, QueueInfo, queue_info, queue_infos, queue_name, queue_tuple
from stepfast._runtime.branch import forbid_in_workflow
from stepfast._runtime.failures import given_failure
from stepfast._runtime.waiting import wait_for_call
from stepfast._validation import bounds
from stepfast._validation.attributes import MAX_VALUE_BYTES, check_attribute_name
from stepfast._validation.durations import Duration, to_timeout
from stepfast._validation.message import check_message
from stepfast._validation.times import instant_micros
from stepfast._workflow.messaging.messages import Sent
from stepfast.errors import InvalidArgument

T = TypeVar("T")


class PendingReply(Generic[T]):
    """The reply that a native call will give. Sync code calls `wait`; async code awaits this object.

    Args:
        call: The call.
        convert: The function that converts the value of the call.
    """

    __slots__ = ("_call", "_convert")

    def __init__(self, call: _native.Call, convert: Callable[[Any], T]) -> None:
        self._call, self._convert = call, convert

    def wait(self) -> T:
        """Waits in this thread, and returns the converted value."""
        return self._convert(wait_for_call(self._call))

    def __await__(self) -> Generator[Any, Any, T]:
        value = yield from self._call.__await__()
        return self._convert(value)


class Operations:
    """Operations on the executions, queues, schedules and workers of a database.

    Attributes:
        native: The native engine.
        port: The port of the event loop on which the operations are awaited; None in sync code.
    """

    native: _native.Engine
    port: _native.Port | None

    def _outside_workflow(self, operation: str) -> _native.Engine:
        """Returns the native engine. Rejects an operation that is called in the code of a workflow."""
        forbid_in_workflow(f"engine.{operation}")
        return self.native

    def get_handle(self, workflow_id: str, workflow: Any = None) -> PendingReply[_native.Handle]:
        """Finds an execution, and checks its workflow if the caller has given one."""
        bounds.check_storable_text("workflow_id", workflow_id)
        name = None if workflow is None else workflow_name(workflow)
        native = self._outside_workflow("get")
        return PendingReply(native.get_handle(workflow_id, name, self.port), _identity)

    def send(
        self, workflow_id: str, value: Any, topic: str, message_id: str | None, keep: bool
    ) -> PendingReply[Sent]:
        """Sends a message to an execution."""
        bounds.check_storable_text("workflow_id", workflow_id)
        check_message(topic, message_id)
        bounds.check_flag("keep", keep)
        native = self._outside_workflow("send")
        return PendingReply(native.send(workflow_id, value, topic, message_id, keep, self.port), _identity)

    def get_event(self, workflow_id: str, name: str, timeout: Duration | None) -> PendingReply[Any]:
        """Waits for an event of an execution."""
        bounds.check_storable_text("workflow_id", workflow_id)
        bounds.check_name("event", name)
        seconds = to_timeout("timeout", timeout)
        native = self._outside_workflow("get_event")
        return PendingReply(native.get_event(workflow_id, name, seconds, self.port), _identity)

    def events(self, workflow_id: str) -> PendingReply[builtins.list[Event]]:
        """Loads all events of an execution."""
        bounds.check_storable_text("workflow_id", workflow_id)
        return PendingReply(self._outside_workflow("events").events(workflow_id, self.port), events_of)

    def read_stream(self, workflow_id: str, stream: str, offset: int) -> _native.StreamReader:
        """Returns a reader of a stream of an execution."""
        bounds.check_storable_text("workflow_id", workflow_id)
        check_reading(stream, offset)
        return self._outside_workflow("read_stream").read_stream(workflow_id, stream, offset)

    def complete_token(self, token: str, value: Any) -> PendingReply[None]:
        """Answers a token with a value."""
        bounds.check_storable_text("token", token)
        native = self._outside_workflow("complete_token")
        return PendingReply(native.complete_token(token, value, self.port), _identity)

    def fail_token(self, token: str, error: BaseException | str) -> PendingReply[None]:
        """Answers a token with an error."""
        bounds.check_storable_text("token", token)
        failure = given_failure(error)
        native = self._outside_workflow("fail_token")
        return PendingReply(native.fail_token(token, failure, self.port), _identity)

    def ask(
        self, workflow_id: str, value: Any, topic: str, timeout: Duration | None, message_id: str | None
    ) -> PendingReply[Any]:
        """Asks an execution a question."""
        bounds.check_storable_text("workflow_id", workflow_id)
        check_message(topic, message_id)
        seconds = to_timeout("timeout", timeout)
        native = self._outside_workflow("ask")
        return PendingReply(native.ask(workflow_id, value, topic, seconds, message_id, self.port), _identity)

    def get_batch(self, batch_id: str, workflow: Any = None) -> PendingReply[_native.BatchHandle]:
        """Finds a batch, and checks its workflow if the caller has given one."""
        bounds.check_storable_text("batch_id", batch_id)
        name = None if workflow is None else workflow_name(workflow)
        native = self._outside_workflow("get_batch")
        return PendingReply(native.get_batch(batch_id, name, self.port), _identity)

    def results(self, handles: Iterable[Any], return_exceptions: bool) -> PendingReply[builtins.list[Any]]:
        """Waits for the ends of many executions."""
        forbid_in_workflow("engine.results")
        call = _native.Handle.results([handle._native for handle in handles], self.port)
        return PendingReply(call, lambda ends: outcomes(ends, return_exceptions))

    def show(self, workflow_id: str) -> PendingReply[Record]:
        """Loads everything that is recorded of an execution."""
        bounds.check_storable_text("workflow_id", workflow_id)
        return PendingReply(self._outside_workflow("show").show(workflow_id, self.port), record_of)

    def get_many(self, workflow_ids: Iterable[str]) -> PendingReply[builtins.list[ExecutionOutcome | None]]:
        """Finds many executions, with their outcomes."""
        bounds.refuse_text("workflow_ids", workflow_ids)
        ids = builtins.list(workflow_ids)
        for workflow_id in ids:
            bounds.check_storable_text("workflow_id", workflow_id)
        return PendingReply(self._outside_workflow("get_many").get_many(ids, self.port), _outcomes)

    def find(
        self, attribute: str, values: Iterable[str], limit: int
    ) -> PendingReply[builtins.list[builtins.list[ExecutionOutcome]]]:
        """Finds the newest executions with each value of an attribute, with their outcomes."""
        bounds.refuse_text("values", values)
        texts = builtins.list(values)
        check_attribute_name("attribute", attribute)
        for value in texts:
            bounds.check_name("a value of the attribute", value, MAX_VALUE_BYTES)
        bounds.check_count("limit", limit, 1)
        native = self._outside_workflow("find")
        return PendingReply(native.find(attribute, texts, limit, self.port), _outcomes_by_value)

    def list(self, filter: Filter, after: str | None, limit: int) -> PendingReply[builtins.list[Execution]]:
        """Lists the executions that match the filter."""
        bounds.check_count("limit", limit, 1)
        if after is not None:
            bounds.check_storable_text("after", after)
        native = self._outside_workflow("list")
        return PendingReply(native.list(self.port, filter_tuple(filter), after, limit), _executions)

    def count(self, filter: Filter) -> PendingReply[int]:
        """Counts the executions that match the filter."""
        native = self._outside_workflow("count")
        return PendingReply(native.list(self.port, filter_tuple(filter), None, 0), _identity)

    def cancel_all(self, filter: Filter) -> PendingReply[BulkResult]:
        """Cancels the executions that match the filter."""
        native = self._outside_workflow("cancel_all")
        conditions = filter_tuple(filter)
        _reject_empty(conditions, 'cancel_all(queue="emails")')
        return PendingReply(native.act_on_all(self.port, conditions, "cancel"), _bulk_result)

    def pause_all(self, filter: Filter) -> PendingReply[BulkResult]:
        """Parks the executions that match the filter."""
        native = self._outside_workflow("pause_all")
        conditions = filter_tuple(filter)
        _reject_empty(conditions, 'pause_all(workflow="etl")')
        return PendingReply(native.act_on_all(self.port, conditions, "pause"), _bulk_result)

    def resume_all(self, filter: Filter) -> PendingReply[BulkResult]:
        """Continues the executions that match the filter."""
        native = self._outside_workflow("resume_all")
        conditions = filter_tuple(filter)
        _reject_empty(conditions, 'resume_all(status="failed")')
        if filter.get("status") is None and filter.get("is_parked") is None:
            raise InvalidArgument(
                'resume_all needs the state of the executions: give status="failed", status="cancelled" or '
                "is_parked=True"
            )
        return PendingReply(native.act_on_all(self.port, conditions, "resume"), _bulk_result)

    def workers(self) -> PendingReply[WorkerOverview]:
        """Lists the workers of the database, and the executions that none of them can run."""
        return PendingReply(self._outside_workflow("workers").workers(self.port), worker_overview)

    def dead_letters(self, limit: int) -> PendingReply[builtins.list[DeadLetter]]:
        """Lists dead letters, the latest first."""
        bounds.check_count("limit", limit, 1)
        native = self._outside_workflow("dead_letters")
        return PendingReply(native.dead_letters(limit, self.port), dead_letters)

    def queues(self) -> PendingReply[builtins.list[QueueInfo]]:
        """Lists the stored queues, sorted by name."""
        return PendingReply(self._outside_workflow("queues").queues(self.port), queue_infos)

    def set_queue(self, queue: Queue) -> PendingReply[QueueInfo]:
        """Creates a queue, or changes its limits."""
        native = self._outside_workflow("set_queue")
        return PendingReply(native.set_queue(queue_tuple(queue), self.port), queue_info)

    def pause_queue(self, queue: str | Queue) -> PendingReply[QueueInfo]:
        """Pauses a queue."""
        native = self._outside_workflow("pause_queue")
        return PendingReply(native.set_paused(queue_name(queue), True, self.port), queue_info)

    def resume_queue(self, queue: str | Queue) -> PendingReply[QueueInfo]:
        """Resumes a paused queue."""
        native = self._outside_workflow("resume_queue")
        return PendingReply(native.set_paused(queue_name(queue), False, self.port), queue_info)

    def native_schedule(self, schedule: Schedule) -> _native.Schedule:
        """Returns a schedule for the native engine, after a check that the engine can start its workflow."""
        raise NotImplementedError

    def set_schedule(self, schedule: Schedule) -> PendingReply[None]:
        """Creates a schedule, or changes the one that has its name."""
        native = self._outside_workflow("set_schedule")
        values = self.native_schedule(checked_schedule(schedule))
        return PendingReply(native.schedules().set(values, self.port), _identity)

    def schedule(self, name: str) -> PendingReply[ScheduleInfo]:
        """Returns a schedule and its present state."""
        return PendingReply(self._schedules("schedule", name).get(name, self.port), schedule_info)

    def schedules(self) -> PendingReply[builtins.list[ScheduleInfo]]:
        """Lists the schedules, sorted by name."""
        native = self._outside_workflow("schedules").schedules()
        return PendingReply(native.list(self.port), schedule_infos)

    def pause_schedule(self, name: str, reason: str) -> PendingReply[None]:
        """Pauses a schedule."""
        bounds.check_storable_text("reason", reason)
        native = self._schedules("pause_schedule", name)
        return PendingReply(native.pause(name, reason, self.port), _identity)

    def resume_schedule(self, name: str) -> PendingReply[None]:
        """Resumes a paused schedule."""
        return PendingReply(self._schedules("resume_schedule", name).resume(name, self.port), _identity)

    def delete_schedule(self, name: str) -> PendingReply[None]:
        """Deletes a schedule."""
        return PendingReply(self._schedules("delete_schedule", name).delete(name, self.port), _identity)

    def trigger_schedule(self, name: str) -> PendingReply[_native.Handle]:
        """Starts an execution of a schedule now."""
        return PendingReply(self._schedules("trigger_schedule", name).trigger(name, self.port), _identity)

    def backfill_schedule(self, name: str, start: datetime, end: datetime) -> PendingReply[int]:
        """Starts the executions of a range of instants."""
        from_micros, until_micros = instant_micros("start", start), instant_micros("end", end)
        native = self._schedules("backfill_schedule", name)
        return PendingReply(native.backfill(name, from_micros, until_micros, self.port), _identity)

    def _schedules(self, operation: str, name: Any) -> _native.Schedules:
        """Returns the schedules of the native engine, for an operation on the one with this name."""
        check_schedule_name("the schedule's name", name)
        return self._outside_workflow(operation).schedules()


def _identity(value: Any) -> Any:
    return value


def _executions(rows: Any) -> list[Execution]:
    return [execution_of(row) for row in rows]


def _outcomes(found: Any) -> list[ExecutionOutcome | None]:
    return [None if execution is None else outcome_of(execution) for execution in found]


def _outcomes_by_value(found: Any) -> list[list[ExecutionOutcome]]:
    return [[outcome_of(execution) for execution in of_value] for of_value in found]


def _bulk_result(counts: Any) -> BulkResult:
    return BulkResult(*counts)


def _reject_empty(conditions: tuple[Any, ...], example: str) -> None:
    """Rejects a filter without conditions, which would select all executions."""
    if all(condition is None or condition == [] for condition in conditions):
        raise InvalidArgument(f"give at least one condition, as in {example}")


__all__ = ["Operations", "PendingReply"]
