"""Support for tests of graphs."""

from stepfast import Graph
from stepfast._workflow import registry


def forget(graph: Graph) -> None:
    """Removes a graph that is invalid, so that engines of other tests can open."""
    del registry._registered[graph.name], registry._completions[graph.name]
