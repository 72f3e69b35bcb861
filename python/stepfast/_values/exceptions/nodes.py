"""Nodes: the parts of single exceptions, without the exceptions linked to them.

An exception and all exceptions linked to it are recorded as a list of nodes, which refer to each other by
index. The first node is the exception itself. A node is the array `class, map with args and slots, map of
attributes, links`; links are the array `cause, context, whether the context is hidden, members of a group`. A
node may have no map with args and slots. Then the map of attributes contains other items: `content` and
`notes`, or `part`. The item `content` is the content that a codec has made of the exception, and `notes` has
the exception's notes. The item `part` is the recorded part of an exception that could be recorded only in
part.

Exceptions are rebuilt without calling their constructors, whose parameters need not match `args`. Tracebacks
are not recorded. Neither is the `obj` of an `AttributeError`, the object on which an attribute is missing.
"""

from collections.abc import Callable
from typing import Any, cast

from ..codec import ClassFinder, own_codecs, require_subclass
from ..errors import DecodeError, NotRecordable, text_of, type_name
from ..references import name_of
from .graph import members_of
from .partial import PART, part_of, partial_node, read_partial_exception
from .state import make_exception, state_of
from .validation_errors import is_validation_error, read_validation_error, reduce_validation_error


def node_of(error: BaseException) -> list[Any]:
    """Returns the node of an exception, without its links.

    Raises:
        NotRecordable: The exception could not be rebuilt.
    """
    if part_of(error) is not None:
        return partial_node(error, lambda _: True)
    cls = type(error)
    name = name_of(cls)
    if (own := own_codecs.get(cls)) is not None:
        return _content_node(name, own[0](error), error)
    if is_validation_error(cls):
        return _content_node(name, reduce_validation_error(error), error)
    state, attributes = state_of(error)
    try:
        rebuilt = make_exception(cls, state, attributes, members_of(error))
    except Exception as failure:
        raise NotRecordable(f"an exception of this class cannot be made again ({failure})") from failure
    if type(rebuilt) is not cls or text_of(rebuilt) != text_of(error):
        raise NotRecordable("an exception of this class has another text when it is made again")
    return [name, state, attributes]


def lossy_node_of(error: BaseException, is_recordable: Callable[[Any], bool]) -> list[Any]:
    """Returns the node of an exception that cannot be recorded as a whole, without its links. The node has
    the exception's class, its text, and its recordable parts.

    Args:
        error: The exception.
        is_recordable: A function that returns whether a value can be recorded.

    Raises:
        NotRecordable: No instance of the exception's class can be made.
    """
    cls = type(error)
    if is_validation_error(cls):
        return _content_node(name_of(cls), reduce_validation_error(error, is_recordable), error)
    return partial_node(error, is_recordable)


def _content_node(name: str, content: object, error: BaseException) -> list[Any]:
    return [name, None, {"content": content, "notes": getattr(error, "__notes__", None)}]


def read_node(node: list[Any], members: tuple[BaseException, ...], finder: ClassFinder) -> BaseException:
    """Rebuilds the exception of one node.

    Raises:
        DecodeError: The class is not found, or is no exception any more.
    """
    name, state, attributes = node[:3]
    cls = finder.find(name)
    require_subclass(cls, BaseException, "exception")
    if state is not None:
        return make_exception(cls, state, attributes, members)
    if PART in attributes:
        return read_partial_exception(cls, attributes[PART], members, finder)
    if is_validation_error(cls):
        made = cast("BaseException", read_validation_error(attributes["content"]))
    elif (own := own_codecs.get(cls)) is not None:
        made = cast("BaseException", own[1](attributes["content"]))
    else:
        raise DecodeError(f"no codec is registered for {type_name(cls)}, but there was one")
    if attributes["notes"] is not None:
        object.__setattr__(made, "__notes__", attributes["notes"])
    return made
