"""Steps whose bodies run in child processes. The death of a child fails one attempt, and has no other
effect."""

from stepfast._processes.pool import ProcessPool
from stepfast._processes.process_step import BoundProcessStep, ProcessStep

__all__ = ["BoundProcessStep", "ProcessPool", "ProcessStep"]
