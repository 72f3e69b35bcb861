"""`encode_exception` and `decode_exception`: how a step or workflow failed, as it is recorded.

The bytes are a plain map that begins like a failure of the engine (`kind`, `message`, `causes`), so that
every language reads what went wrong. `python` is an array with a map for each exception: `kind`, `message`,
`links` (see stepfast.values.exceptions), `notes` if there are, and `value` if the exception can be made
again: its encoding, alone.
"""

import contextlib
from typing import Any, cast

from ormsgpack import packb, unpackb

from .decoder import Reader
from .encoder import encode
from .errors import DecodeError, text_of, type_name, unicode_of
from .exceptions import Links, RemoteError, assemble, graph_of, node_of, read_node
from .wire import ANY_KEYS


def encode_exception(error: BaseException) -> bytes:
    """The bytes of an exception, with its causes and notes; every exception has some.

    One that could not be made again as it is (its class is local, it holds a connection, it says something
    else when it is made again) is recorded by the name of its class and by its text, and comes back as a
    `RemoteError`.

    Args:
        error: The exception. It is not changed.
    """
    graph = graph_of(error)
    return packb(
        {
            "kind": unicode_of(_kind(error)),
            "message": _message(error),
            "causes": [_message(cause) for cause in _causes(error)],
            "python": [_recorded(each, links) for each, links in graph],
        }
    )


def decode_exception(data: bytes | bytearray | memoryview) -> BaseException:
    """The exception that `encode_exception` was given, or a `RemoteError` that says what it was.

    Args:
        data: What `encode_exception` gave.

    Raises:
        DecodeError: The bytes are no recorded failure.
    """
    try:
        content: Any = unpackb(data, option=ANY_KEYS)
        if "python" not in content:
            return _foreign(content)
        nodes: list[dict[str, Any]] = content["python"]
        return assemble(
            [node["links"] for node in nodes], lambda place, members: _made(nodes[place], members)
        )
    except (ValueError, KeyError, TypeError) as error:
        raise DecodeError(f"the bytes are no recorded failure: {error}") from error


def _kind(error: BaseException) -> str:
    return error.kind if isinstance(error, RemoteError) else type_name(type(error))


def _message(error: BaseException) -> str:
    return unicode_of(error.message) if isinstance(error, RemoteError) else text_of(error)


def _causes(error: BaseException) -> list[BaseException]:
    """What led to it, outermost first, as a traceback would show it."""
    causes: list[BaseException] = [error]
    while True:
        last = causes[-1]
        following = last.__cause__ or (None if last.__suppress_context__ else last.__context__)
        if following is None or any(following is each for each in causes):
            return causes[1:]
        causes.append(following)


def _recorded(error: BaseException, links: Links) -> dict[str, object]:
    recorded: dict[str, object] = {
        "kind": unicode_of(_kind(error)),
        "message": _message(error),
        "links": links,
    }
    notes: object = getattr(error, "__notes__", None)
    if isinstance(notes, list):
        recorded["notes"] = [unicode_of(str(note)) for note in cast("list[object]", notes)]
    # whatever goes wrong here, the failure itself must not be lost
    with contextlib.suppress(Exception):
        recorded["value"] = encode(node_of(error))
    return recorded


def _made(node: dict[str, Any], members: tuple[BaseException, ...]) -> BaseException:
    if "value" in node:
        reader = Reader()
        with contextlib.suppress(Exception):
            return read_node(reader.value(node["value"]), members, reader)
    made = RemoteError(node["kind"], node["message"])
    made.exceptions = members
    for note in node.get("notes", ()):
        made.add_note(note)
    return made


def _foreign(content: dict[str, Any]) -> RemoteError:
    """A failure that was not recorded by Python."""
    made = RemoteError(content["kind"], content["message"])
    last: BaseException = made
    for cause in content.get("causes", ()):
        last.__cause__ = RemoteError("", cause)
        last = last.__cause__
    return made
