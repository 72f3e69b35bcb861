"""Stepfast is a durable workflow engine that batches for you: every step is safe on disk before the next one
acts, and a thousand of them share one flush."""

from stepfast._decorators import step
from stepfast._engine.async_engine import AsyncEngine
from stepfast._engine.client import AsyncClient, Client
from stepfast._engine.dead_letters import DeadLetter
from stepfast._engine.engine import Engine
from stepfast._engine.filter import Answers, Filter
from stepfast._engine.handle import AsyncHandle, Handle
from stepfast._engine.options import AsyncClientOptions, AsyncOptions, ClientOptions, Options
from stepfast._engine.records import Attempt, Checkpoint, Execution, Record
from stepfast._engine.workers import Survey, Unclaimable, Worker
from stepfast._native import __version__ as __version__
from stepfast._options.queue import Queue, QueueInfo, Rate
from stepfast._outbox.outbox import AsyncOutbox, Outbox
from stepfast._processes import BoundProcessStep, ProcessStep
from stepfast._runtime.current import Current, current
from stepfast._runtime.log import ReplayFilter
from stepfast._values.references import class_of_name
from stepfast._workflow.child import AsyncChild, Child
from stepfast._workflow.gather import as_completed, gather, map
from stepfast._workflow.instance import Instance
from stepfast._workflow.sleep import sleep
from stepfast._workflow.step import BoundStep, Step
from stepfast._workflow.timeout import timeout, wait_for
from stepfast._workflow.workflow import BoundWorkflow, PlacedWorkflow, Workflow, workflow
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
from stepfast.values import DecodeError, EncodeError, RemoteError

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

for _name in __all__:
    # classes are recorded under the names by which programs import them
    if globals()[_name].__module__.startswith("stepfast._"):
        globals()[_name].__module__ = __name__

# names under which earlier programs have recorded these classes
for _module, _classes in {
    "current": (Current,),
    "dead_letters": (DeadLetter,),
    "filter": (Answers,),
    "queue": (Queue, QueueInfo, Rate),
    "records": (Attempt, Checkpoint, Execution, Record),
    "survey": (Survey, Unclaimable, Worker),
    "values.errors": (DecodeError, EncodeError),
    "values.exceptions": (RemoteError,),
}.items():
    for _class in _classes:
        class_of_name[f"stepfast.{_module}:{_class.__qualname__}"] = _class
