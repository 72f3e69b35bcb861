"""Stepfast is a durable workflow engine that batches for you: every step is safe on disk before the next one
acts, and a thousand of them share one flush."""

from stepfast.async_engine import AsyncEngine
from stepfast.engine import Engine
from stepfast.errors import (
    Conflict,
    Corrupt,
    Error,
    Invalid,
    NotFound,
    Parked,
    ProcessDied,
    Unavailable,
    WorkflowCancelled,
    WorkflowFailed,
)
from stepfast.handle import AsyncHandle, Handle
from stepfast.processes import ProcessStep
from stepfast.step import Step, step
from stepfast.waits import sleep
from stepfast.workflow import Workflow, workflow

__all__ = [
    "AsyncEngine",
    "AsyncHandle",
    "Conflict",
    "Corrupt",
    "Engine",
    "Error",
    "Handle",
    "Invalid",
    "NotFound",
    "Parked",
    "ProcessDied",
    "ProcessStep",
    "Step",
    "Unavailable",
    "Workflow",
    "WorkflowCancelled",
    "WorkflowFailed",
    "sleep",
    "step",
    "workflow",
]
