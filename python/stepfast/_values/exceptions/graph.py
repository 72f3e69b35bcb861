"""The graph of an exception and all exceptions linked to it: causes, contexts, members of groups."""

from collections.abc import Callable
from typing import Any, cast

from .remote_error import RemoteError

#: The links of an exception: the index of the cause, that of the context, whether the context is hidden, and
#: the indexes of the members.
Links = list[Any]


def graph_of(error: BaseException) -> list[tuple[BaseException, Links]]:
    """Returns a list of the exception and all exceptions linked to it, each with its links. The exception
    itself is first."""
    found = [error]
    indexes = {id(error): 0}

    def index(other: BaseException | None) -> int | None:
        if other is None:
            return None
        if id(other) not in indexes:
            indexes[id(other)] = len(found)
            found.append(other)
        return indexes[id(other)]

    graph: list[tuple[BaseException, Links]] = []
    for each in found:
        is_context_hidden = each.__suppress_context__
        cause = index(each.__cause__)
        context = (
            None if is_context_hidden and each.__context__ is not each.__cause__ else index(each.__context__)
        )
        graph.append(
            (each, [cause, context, is_context_hidden, [index(member) for member in members_of(each)]])
        )
    return graph


def members_of(error: BaseException) -> tuple[BaseException, ...]:
    """Returns the members of an exception group, or of a `RemoteError` that stands for a group."""
    if not isinstance(error, (BaseExceptionGroup, RemoteError)):
        return ()
    members: Any = cast("Any", error).exceptions
    return tuple(members)


def assemble(
    links: list[Links], make: Callable[[int, tuple[BaseException, ...]], BaseException]
) -> BaseException:
    """Returns the first exception of a graph, with all exceptions linked to it.

    Args:
        links: The links of every node.
        make: A function that rebuilds the exception of a node. Its arguments are the index of the node and
            the members.
    """
    made: dict[int, BaseException] = {}
    for index, (cause, context, is_context_hidden, _) in enumerate(links):
        error = _exception_at(index, links, make, made)
        # plain assignment would fail if the class of the exception is frozen
        for name, linked in (("__cause__", cause), ("__context__", context)):
            found = None if linked is None else _exception_at(linked, links, make, made)
            object.__setattr__(error, name, found)
        object.__setattr__(error, "__suppress_context__", is_context_hidden)
    return _exception_at(0, links, make, made)


def _exception_at(
    index: int,
    links: list[Links],
    make: Callable[[int, tuple[BaseException, ...]], BaseException],
    made: dict[int, BaseException],
) -> BaseException:
    """Returns the exception of a node. Rebuilds each exception only once. This is no inner function of
    `assemble`, because that would create a reference cycle."""
    if index not in made:
        members = tuple(_exception_at(member, links, make, made) for member in links[index][3])
        made[index] = make(index, members)
    return made[index]
