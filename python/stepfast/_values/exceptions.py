"""Exceptions: their class, arguments, attributes and notes, and the exceptions that they lead to.

An exception and all that it leads to (causes, contexts, members of groups) is a list of nodes that refer to
each other by their place in it; the first is the exception itself. A node is the array
`class, map with args and slots, map of attributes, links`; links are the array
`cause, context, whether the context is hidden, members of a group`.

The constructor is not called, as its parameters need not be those of `args`. Tracebacks are not kept, nor
is the object on which an `AttributeError` missed an attribute.
"""

from collections.abc import Callable
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, Final, cast

from . import codes
from .codec import Codec, Label, Names, derives, expect, own_codecs
from .errors import DecodeError, Refusal, text_of, type_name
from .references import name_of

Links = list[Any]
Group = BaseExceptionGroup[BaseException]

_IGNORED: Final = frozenset({"obj", "exceptions", "message"})


def graph_of(error: BaseException) -> list[tuple[BaseException, Links]]:
    """The exception and all that it leads to, each with its links."""
    found = [error]
    places = {id(error): 0}

    def place(other: BaseException | None) -> int | None:
        if other is None:
            return None
        if id(other) not in places:
            places[id(other)] = len(found)
            found.append(other)
        return places[id(other)]

    graph: list[tuple[BaseException, Links]] = []
    for each in found:
        hidden = each.__suppress_context__
        cause = place(each.__cause__)
        context = None if hidden and each.__context__ is not each.__cause__ else place(each.__context__)
        graph.append((each, [cause, context, hidden, [place(member) for member in members_of(each)]]))
    return graph


def members_of(error: BaseException) -> tuple[BaseException, ...]:
    """The exceptions of a group, or of what stands for one."""
    return tuple(getattr(error, "exceptions", ())) if is_group(error) else ()


def is_group(error: BaseException) -> bool:
    """Whether it has members."""
    return isinstance(error, (BaseExceptionGroup, RemoteError))


def node_of(error: BaseException) -> list[Any]:
    """The exception alone.

    Raises:
        Refusal: It could not be made again.
    """
    cls = type(error)
    name = name_of(cls)
    if (own := own_codecs.get(cls)) is not None:
        return [name, None, {"content": own[0](error), "notes": getattr(error, "__notes__", None)}]
    state: dict[str, Any] = {"args": error.args}
    if derives(cls, BaseExceptionGroup):
        state["args"] = (cast(Group, error).message,)
    for base in cls.__mro__[: cls.__mro__.index(BaseException)]:
        is_built_in = base.__module__ == "builtins"
        for attribute, descriptor in vars(base).items():
            if attribute.startswith("__") or (is_built_in and attribute in _IGNORED):
                continue
            if isinstance(descriptor, (MemberDescriptorType, GetSetDescriptorType)):
                item = getattr(error, attribute, None)
                if item is not None or (not is_built_in and hasattr(error, attribute)):
                    state[attribute] = item
    attributes = dict(error.__dict__)
    if cls is RemoteError:
        del attributes["exceptions"]
    try:
        again = _make(cls, state, attributes, members_of(error))
    except Exception as failure:
        raise Refusal(f"an exception of this class cannot be made again ({failure})") from failure
    if type(again) is not cls or text_of(again) != text_of(error):
        raise Refusal("an exception of this class says something else when it is made again")
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


def read_node(node: list[Any], members: tuple[BaseException, ...], names: Names) -> BaseException:
    """The exception of one node.

    Raises:
        DecodeError: Its class is not found, or is no exception any more.
    """
    name, state, attributes = node[:3]
    cls = names.find(name)
    expect(cls, BaseException, "exception")
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
    """The first exception of a graph, with all that it leads to.

    Args:
        links: Of every node.
        make: Makes the exception of a node of the members that it is given.
    """
    made: dict[int, BaseException] = {}
    for place, (cause, context, hidden, _) in enumerate(links):
        error = _made(place, links, make, made)
        # not by assignment: the class may be frozen
        for name, linked in (("__cause__", cause), ("__context__", context)):
            found = None if linked is None else _made(linked, links, make, made)
            object.__setattr__(error, name, found)
        object.__setattr__(error, "__suppress_context__", hidden)
    return _made(0, links, make, made)


def _made(
    place: int,
    links: list[Links],
    make: Callable[[int, tuple[BaseException, ...]], BaseException],
    made: dict[int, BaseException],
) -> BaseException:
    """The exception of a node, which is made once. No function of `assemble`: that would be in a cycle."""
    if place not in made:
        members = tuple(_made(member, links, make, made) for member in links[place][3])
        made[place] = make(place, members)
    return made[place]


def _reduce(error: BaseException) -> list[Any]:
    return [[*node_of(each), links] for each, links in graph_of(error)]


def read_exception(content: list[Any], names: Names) -> BaseException:
    """The exception with all that it leads to."""
    return assemble(
        [node[3] for node in content],
        lambda place, members: read_node(content[place], members, names),
    )


CODEC: Final = Codec(codes.EXCEPTION, _reduce, Label.NODES)


class RemoteError(Exception):
    """Stands for an exception that cannot be made again here.

    Attributes:
        kind: Name of its class.
        message: What it said.
        exceptions: What its members became, if it was a group.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind: str = kind
        self.message: str = message
        self.exceptions: tuple[BaseException, ...] = ()

    def __str__(self) -> str:
        return ": ".join(part for part in (self.kind, self.message) if part)
