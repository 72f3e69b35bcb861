"""Codec of exceptions: class, arguments, attributes, notes, and linked exceptions.

An exception and all exceptions linked to it (causes, contexts, members of groups) are recorded as a list of
nodes, which refer to each other by index. The first node is the exception itself. A node is the array `class,
map with args and slots, map of attributes, links`; links are the array `cause, context, whether the context
is hidden, members of a group`.

Exceptions are rebuilt without calling their constructors, whose parameters need not match `args`. Tracebacks
are not recorded, nor is the object on which an `AttributeError` missed an attribute.
"""

from collections.abc import Callable
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, Final, cast

from . import codes
from .codec import ClassFinder, Codec, Label, derives_from, own_codecs, require_subclass
from .errors import DecodeError, NotRecordable, text_of, type_name
from .references import name_of

Links = list[Any]
Group = BaseExceptionGroup[BaseException]

_IGNORED_ATTRIBUTES: Final = frozenset({"obj", "exceptions", "message"})


def graph_of(error: BaseException) -> list[tuple[BaseException, Links]]:
    """Returns the exception and all exceptions linked to it, each with its links."""
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
    """Returns the members of an exception group, or of the `RemoteError` of one."""
    return tuple(getattr(error, "exceptions", ())) if is_group(error) else ()


def is_group(error: BaseException) -> bool:
    """Returns whether an exception may have members."""
    return isinstance(error, (BaseExceptionGroup, RemoteError))


def node_of(error: BaseException) -> list[Any]:
    """Returns the node of an exception, without its links.

    Raises:
        NotRecordable: The exception could not be rebuilt.
    """
    cls = type(error)
    name = name_of(cls)
    if (own := own_codecs.get(cls)) is not None:
        return [name, None, {"content": own[0](error), "notes": getattr(error, "__notes__", None)}]
    state: dict[str, Any] = {"args": error.args}
    if derives_from(cls, BaseExceptionGroup):
        state["args"] = (cast(Group, error).message,)
    for base in cls.__mro__[: cls.__mro__.index(BaseException)]:
        is_built_in = base.__module__ == "builtins"
        for attribute, descriptor in vars(base).items():
            if attribute.startswith("__") or (is_built_in and attribute in _IGNORED_ATTRIBUTES):
                continue
            if isinstance(descriptor, (MemberDescriptorType, GetSetDescriptorType)):
                item = getattr(error, attribute, None)
                if item is not None or (not is_built_in and hasattr(error, attribute)):
                    state[attribute] = item
    attributes = dict(error.__dict__)
    if cls is RemoteError:
        del attributes["exceptions"]
    try:
        rebuilt = _make(cls, state, attributes, members_of(error))
    except Exception as failure:
        raise NotRecordable(f"an exception of this class cannot be made again ({failure})") from failure
    if type(rebuilt) is not cls or text_of(rebuilt) != text_of(error):
        raise NotRecordable("an exception of this class says something else when it is made again")
    return [name, state, attributes]


def _make(
    cls: type[BaseException],
    state: dict[str, Any],
    attributes: dict[str, Any],
    members: tuple[BaseException, ...],
) -> BaseException:
    base: Any = next(base for base in cls.__mro__ if base.__module__ == "builtins")
    args = state["args"]
    is_real_group = issubclass(cls, BaseExceptionGroup)
    if is_real_group:
        args = (*args, members)
    made: BaseException = base.__new__(cls, *args)
    for name, item in state.items():
        if name != "args" or not is_real_group:
            object.__setattr__(made, name, item)
    made.__dict__.update(attributes)
    if cls is RemoteError:
        made.__dict__["exceptions"] = members
    return made


def read_node(node: list[Any], members: tuple[BaseException, ...], finder: ClassFinder) -> BaseException:
    """Rebuilds the exception of one node.

    Raises:
        DecodeError: The class is not found, or is no exception any more.
    """
    name, state, attributes = node[:3]
    cls = finder.find(name)
    require_subclass(cls, BaseException, "exception")
    if state is not None:
        return _make(cls, state, attributes, members)
    if cls not in own_codecs:
        raise DecodeError(f"no codec is registered for {type_name(cls)}, but there was one")
    made = cast(BaseException, own_codecs[cls][1](attributes["content"]))
    if attributes["notes"] is not None:
        object.__setattr__(made, "__notes__", attributes["notes"])
    return made


def assemble(
    links: list[Links], make: Callable[[int, tuple[BaseException, ...]], BaseException]
) -> BaseException:
    """Returns the first exception of a graph, with all exceptions linked to it.

    Args:
        links: The links of every node.
        make: Rebuilds the exception of a node, given by its index, with its members.
    """
    made: dict[int, BaseException] = {}
    for index, (cause, context, is_context_hidden, _) in enumerate(links):
        error = _exception_at(index, links, make, made)
        # plain assignment would fail if the class is frozen
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
    """Returns the exception of a node, and rebuilds it once. A function within `assemble` would create a
    reference cycle."""
    if index not in made:
        members = tuple(_exception_at(member, links, make, made) for member in links[index][3])
        made[index] = make(index, members)
    return made[index]


def _reduce(error: BaseException) -> list[Any]:
    return [[*node_of(each), links] for each, links in graph_of(error)]


def read_exception(content: list[Any], finder: ClassFinder) -> BaseException:
    """Rebuilds an exception with all exceptions linked to it."""
    return assemble(
        [node[3] for node in content],
        lambda index, members: read_node(content[index], members, finder),
    )


CODEC: Final = Codec(codes.EXCEPTION, _reduce, Label.NODES)


class RemoteError(Exception):
    """Stands for an exception that cannot be rebuilt here.

    Attributes:
        kind: The name of its class.
        message: Its text.
        exceptions: Its members, if the exception was a group.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind: str = kind
        self.message: str = message
        self.exceptions: tuple[BaseException, ...] = ()

    def __str__(self) -> str:
        return ": ".join(part for part in (self.kind, self.message) if part)
