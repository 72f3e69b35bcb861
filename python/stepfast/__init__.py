"""Stepfast is a durable workflow engine that batches for you: every step is safe on disk before the next one
acts, and a thousand of them share one flush."""

from stepfast._decorators import step
from stepfast._engine.async_client import AsyncClient
from stepfast._engine.async_engine import AsyncEngine
from stepfast._engine.batch.handle import AsyncBatchHandle, BatchHandle
from stepfast._engine.client import Client
from stepfast._engine.dead_letters import DeadLetter
from stepfast._engine.engine import Engine
from stepfast._engine.filter import BulkResult, Filter
from stepfast._engine.handle import AsyncHandle, Handle
from stepfast._engine.messaging.streams import StreamValue
from stepfast._engine.records import Attempt, Checkpoint, Event, Execution, ExecutionOutcome, Record, Wait
from stepfast._engine.scheduling.schedule import CatchUp, Overlap, Schedule
from stepfast._engine.scheduling.schedule_info import ScheduleInfo
from stepfast._engine.status import Status, StatusText
from stepfast._engine.workers import Unclaimable, Worker, WorkerOverview
from stepfast._graph.context_values.context import Context
from stepfast._graph.graph import Graph
from stepfast._graph.task import Task
from stepfast._native import __version__ as __version__
from stepfast._options.batch_options import BatchOptions, ChildBatchOptions
from stepfast._options.queue import Queue, QueueInfo, Rate
from stepfast._options.start_options import OnDuplicate, OnFull, StartOptions
from stepfast._outbox.outbox import AsyncOutbox, Outbox
from stepfast._processes import BoundProcessStep, ProcessStep
from stepfast._runtime.current import Current, current, current_or_none
from stepfast._runtime.log import ReplayFilter
from stepfast._validation.backoff import Backoff
from stepfast._validation.durations import Duration
from stepfast._validation.retry_rule import RetryOn
from stepfast._values.references import class_of_name as _class_of_name
from stepfast._workflow.batch.child_batch import AsyncChildBatch, ChildBatch
from stepfast._workflow.batch.counts import BatchCounts
from stepfast._workflow.batch.item_result import ItemResult
from stepfast._workflow.child import AsyncChild, Child
from stepfast._workflow.concurrency.gather import as_completed, gather
from stepfast._workflow.concurrency.gather import map as map
from stepfast._workflow.concurrency.race import race
from stepfast._workflow.concurrency.timeout import timeout, wait_for
from stepfast._workflow.instance import Instance
from stepfast._workflow.messaging.events import get_event, set_event
from stepfast._workflow.messaging.messages import receive, send
from stepfast._workflow.messaging.questions import Question, ask, receive_question
from stepfast._workflow.messaging.streams import close_stream, write_stream
from stepfast._workflow.messaging.tokens import AsyncToken, Token, create_token
from stepfast._workflow.remote import RemoteWorkflow
from stepfast._workflow.sleep import sleep, sleep_until
from stepfast._workflow.startable import Startable
from stepfast._workflow.step import BoundStep, Step
from stepfast._workflow.wait_until import wait_until
from stepfast._workflow.workflow import BoundWorkflow, ConfiguredWorkflow, Workflow, workflow
from stepfast.errors import (
    Conflict,
    DedupConflict,
    EngineClosed,
    Error,
    ExecutionEnded,
    InvalidArgument,
    NotFound,
    ProcessDied,
    QueueConflict,
    QueueFull,
    ResultTimeout,
    ScheduleConflict,
    ScheduleNotFound,
    SchemaMismatch,
    StepfastWarning,
    StoreCorrupt,
    StoreUnavailable,
    TokenAnswered,
    Unavailable,
    WorkflowCancelled,
    WorkflowFailed,
    WorkflowIdConflict,
    WorkflowParked,
)
from stepfast.values import DecodeError, EncodeError, RemoteError

__all__ = [
    "AsyncBatchHandle",
    "AsyncChild",
    "AsyncChildBatch",
    "AsyncClient",
    "AsyncEngine",
    "AsyncHandle",
    "AsyncOutbox",
    "AsyncToken",
    "Attempt",
    "Backoff",
    "BatchCounts",
    "BatchHandle",
    "BatchOptions",
    "BoundProcessStep",
    "BoundStep",
    "BoundWorkflow",
    "BulkResult",
    "CatchUp",
    "Checkpoint",
    "Child",
    "ChildBatch",
    "ChildBatchOptions",
    "Client",
    "ConfiguredWorkflow",
    "Conflict",
    "Context",
    "Current",
    "DeadLetter",
    "DecodeError",
    "DedupConflict",
    "Duration",
    "EncodeError",
    "Engine",
    "EngineClosed",
    "Error",
    "Event",
    "Execution",
    "ExecutionEnded",
    "ExecutionOutcome",
    "Filter",
    "Graph",
    "Handle",
    "Instance",
    "InvalidArgument",
    "ItemResult",
    "NotFound",
    "OnDuplicate",
    "OnFull",
    "Outbox",
    "Overlap",
    "ProcessDied",
    "ProcessStep",
    "Question",
    "Queue",
    "QueueConflict",
    "QueueFull",
    "QueueInfo",
    "Rate",
    "Record",
    "RemoteError",
    "RemoteWorkflow",
    "ReplayFilter",
    "ResultTimeout",
    "RetryOn",
    "Schedule",
    "ScheduleConflict",
    "ScheduleInfo",
    "ScheduleNotFound",
    "SchemaMismatch",
    "StartOptions",
    "Startable",
    "Status",
    "StatusText",
    "Step",
    "StepfastWarning",
    "StoreCorrupt",
    "StoreUnavailable",
    "StreamValue",
    "Task",
    "Token",
    "TokenAnswered",
    "Unavailable",
    "Unclaimable",
    "Wait",
    "Worker",
    "WorkerOverview",
    "Workflow",
    "WorkflowCancelled",
    "WorkflowFailed",
    "WorkflowIdConflict",
    "WorkflowParked",
    "as_completed",
    "ask",
    "close_stream",
    "create_token",
    "current",
    "current_or_none",
    "gather",
    "get_event",
    "race",
    "receive",
    "receive_question",
    "send",
    "set_event",
    "sleep",
    "sleep_until",
    "step",
    "timeout",
    "wait_for",
    "wait_until",
    "workflow",
    "write_stream",
]

for _name in (*__all__, "map"):
    # classes are recorded under the names by which programs import them
    if globals()[_name].__module__.startswith("stepfast._"):
        globals()[_name].__module__ = __name__

# names under which earlier programs have recorded these classes
_class_of_name.update(
    {
        "stepfast:Answers": BulkResult,
        "stepfast:Survey": WorkerOverview,
        "stepfast.current:Current": Current,
        "stepfast.dead_letters:DeadLetter": DeadLetter,
        "stepfast.errors:Corrupt": StoreCorrupt,
        "stepfast.errors:Invalid": InvalidArgument,
        "stepfast.errors:Parked": WorkflowParked,
        "stepfast.filter:Answers": BulkResult,
        "stepfast.queue:Queue": Queue,
        "stepfast.queue:QueueInfo": QueueInfo,
        "stepfast.queue:Rate": Rate,
        "stepfast.records:Attempt": Attempt,
        "stepfast.records:Checkpoint": Checkpoint,
        "stepfast.records:Execution": Execution,
        "stepfast.records:ExecutionOutcome": ExecutionOutcome,
        "stepfast.records:Record": Record,
        "stepfast.survey:Survey": WorkerOverview,
        "stepfast.survey:Unclaimable": Unclaimable,
        "stepfast.survey:Worker": Worker,
        "stepfast.values.errors:DecodeError": DecodeError,
        "stepfast.values.errors:EncodeError": EncodeError,
        "stepfast.values.exceptions:RemoteError": RemoteError,
    }
)
