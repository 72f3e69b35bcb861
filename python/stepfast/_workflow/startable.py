"""Base class of everything that engines, clients and outboxes start."""

from __future__ import annotations

from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class Startable(Generic[P, R]):
    """Base of everything that engines, clients and outboxes start: `Workflow`, `BoundWorkflow`,
    `ConfiguredWorkflow` and `RemoteWorkflow`. `P` stands for the parameters, `R` for the type that a call
    returns."""


__all__ = ["Startable"]
