"""Steps whose bodies run in child processes: the death of a child fails one attempt, and nothing else."""

from stepfast._processes.pool import ProcessPool
from stepfast._processes.process_step import BoundProcessStep, ProcessStep

__all__ = ["BoundProcessStep", "ProcessPool", "ProcessStep"]
