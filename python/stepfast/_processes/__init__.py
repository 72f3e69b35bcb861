"""Steps whose bodies run in processes of their own: a child that dies fails an attempt, and nothing else."""

from stepfast._processes.pool import Processes
from stepfast._processes.process_step import BoundProcessStep, ProcessStep

__all__ = ["BoundProcessStep", "ProcessStep", "Processes"]
