"""Stepfast is a durable workflow engine that batches for you: every step is safe on disk before the next one
acts, and a thousand of them share one flush."""

from stepfast._native import __version__ as __version__
from stepfast.async_engine import AsyncEngine
from stepfast.child import AsyncChild, Child
from stepfast.client import AsyncClient, Client
from stepfast.current import Current, current
from stepfast.dead_letters import DeadLetter
from stepfast.engine import Engine
from stepfast.errors import (
    Conflict,
    Corrupt,
    Error,
    Invalid,
    NotFound,
    Parked,
    ProcessDied,
    QueueFull,
    StepfastWarning,
    Unavailable,
    WorkflowCancelled,
    WorkflowFailed,
)
from stepfast.fan_out import as_completed, gather, map
from stepfast.filter import Answers, Filter
from stepfast.handle import AsyncHandle, Handle
from stepfast.instances import Instance
from stepfast.log import ReplayFilter
from stepfast.options import AsyncClientOptions, AsyncOptions, ClientOptions, Options
from stepfast.outbox import AsyncOutbox, Outbox
from stepfast.processes import BoundProcessStep, ProcessStep
from stepfast.queue import Queue, QueueInfo, Rate
from stepfast.records import Attempt, Checkpoint, Execution, Record
from stepfast.step import BoundStep, Step, step
from stepfast.survey import Survey, Unclaimable, Worker
from stepfast.timeouts import timeout, wait_for
from stepfast.values import DecodeError, EncodeError
from stepfast.waits import sleep
from stepfast.workflow import BoundWorkflow, PlacedWorkflow, Workflow, workflow

__all__ = [
    "Answers",
    "AsyncChild",
    "AsyncClient",
    "AsyncClientOptions",
    "AsyncEngine",
    "AsyncHandle",
    "AsyncOptions",
    "AsyncOutbox",
    "Attempt",
    "BoundProcessStep",
    "BoundStep",
    "BoundWorkflow",
    "Checkpoint",
    "Child",
    "Client",
    "ClientOptions",
    "Conflict",
    "Corrupt",
    "Current",
    "DeadLetter",
    "DecodeError",
    "EncodeError",
    "Engine",
    "Error",
    "Execution",
    "Filter",
    "Handle",
    "Instance",
    "Invalid",
    "NotFound",
    "Options",
    "Outbox",
    "Parked",
    "PlacedWorkflow",
    "ProcessDied",
    "ProcessStep",
    "Queue",
    "QueueFull",
    "QueueInfo",
    "Rate",
    "Record",
    "ReplayFilter",
    "Step",
    "StepfastWarning",
    "Survey",
    "Unavailable",
    "Unclaimable",
    "Worker",
    "Workflow",
    "WorkflowCancelled",
    "WorkflowFailed",
    "as_completed",
    "current",
    "gather",
    "map",
    "sleep",
    "step",
    "timeout",
    "wait_for",
    "workflow",
]
