"""The codec of exceptions that are values, or parts of values. See `stepfast._values.exceptions.nodes`."""

from typing import Any, Final

from .. import codes
from ..codec import ClassFinder, Codec, Label
from .graph import assemble, graph_of
from .nodes import node_of, read_node


def _reduce(error: BaseException) -> list[Any]:
    return [[*node_of(each), links] for each, links in graph_of(error)]


def read_exception(content: list[Any], finder: ClassFinder) -> BaseException:
    """Rebuilds an exception with all exceptions linked to it."""
    return assemble(
        [node[3] for node in content],
        lambda index, members: read_node(content[index], members, finder),
    )


CODEC: Final = Codec(codes.EXCEPTION, _reduce, Label.NODES)
