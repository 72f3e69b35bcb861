"""`encode_exception` and `decode_exception`: the recorded failures of steps and workflows.

The bytes are a plain map that begins like a failure of the engine (`kind`, `message`, `causes`), so that
every language can read the failure. `python` is an array with a map for each exception: `kind`, `message`,
`links` (see stepfast._values.exceptions.nodes), `notes`, `bases` and `value`. `notes` is missing if there are
none. `bases` has the names of the classes from which the exception's class derives; it is missing if the
class is built in. `value` is the separate encoding of the exception's node; it is missing if no exception of
the class can be made again.
"""

import contextlib
from typing import Any, cast

from ormsgpack import packb, unpackb

from ..decoder import Reader
from ..encoder import encode
from ..errors import DecodeError, EncodeError, NotRecordable, text_of, to_unicode, type_name
from ..msgpack_options import ANY_KEYS
from .graph import Links, assemble, graph_of
from .nodes import lossy_node_of, node_of, read_node
from .remote_error import RemoteError, base_names


def encode_exception(error: BaseException) -> bytes:
    """Returns the bytes of an exception, with its causes and notes. Every exception can be encoded.

    An exception that holds something that cannot be recorded, such as a connection, is recorded by its class,
    its text and the rest of its attributes. An exception is decoded as a `RemoteError` if its class cannot be
    found again or no instance can be made. An example is a class that is local to a function.

    Args:
        error: The exception, which is not changed.
    """
    graph = graph_of(error)
    return packb(
        {
            "kind": to_unicode(_kind(error)),
            "message": _message(error),
            "causes": [_message(cause) for cause in _causes(error)],
            "python": [_record_node(each, links) for each, links in graph],
        }
    )


def decode_exception(data: bytes | bytearray | memoryview) -> BaseException:
    """Returns the exception that was given to `encode_exception`, or a `RemoteError` with its class name and
    text.

    Args:
        data: The bytes that `encode_exception` returned.

    Raises:
        DecodeError: The bytes are no recorded failure.
    """
    try:
        content: Any = unpackb(data, option=ANY_KEYS)
        if "python" not in content:
            return _remote_error(content)
        nodes: list[dict[str, Any]] = content["python"]
        return assemble(
            [node["links"] for node in nodes],
            lambda index, members: _exception_of_node(nodes[index], members),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise DecodeError(f"the bytes are no recorded failure: {error}") from error


def _kind(error: BaseException) -> str:
    return error.kind if isinstance(error, RemoteError) else type_name(type(error))


def _message(error: BaseException) -> str:
    return to_unicode(error.message) if isinstance(error, RemoteError) else text_of(error)


def _causes(error: BaseException) -> list[BaseException]:
    """Returns the causes of an exception, outermost first, as a traceback shows them."""
    causes: list[BaseException] = [error]
    while True:
        last = causes[-1]
        cause = last.__cause__ or (None if last.__suppress_context__ else last.__context__)
        if cause is None or any(cause is each for each in causes):
            return causes[1:]
        causes.append(cause)


def _record_node(error: BaseException, links: Links) -> dict[str, object]:
    recorded: dict[str, object] = {
        "kind": to_unicode(_kind(error)),
        "message": _message(error),
        "links": links,
    }
    notes: object = getattr(error, "__notes__", None)
    if isinstance(notes, list):
        recorded["notes"] = [to_unicode(str(note)) for note in cast("list[object]", notes)]
    if type(error).__module__ != "builtins" and (bases := _bases(error)):
        recorded["bases"] = bases
    # an error in the rest of this block must not prevent the recording of the failure itself
    with contextlib.suppress(Exception):
        recorded["value"] = _encode_node(error)
    return recorded


def _bases(error: BaseException) -> list[str]:
    names = list(error.bases) if isinstance(error, RemoteError) else base_names(type(error))
    return [to_unicode(name) for name in names]


def _encode_node(error: BaseException) -> bytes:
    """Returns the encoded node of an exception, with all of its state or with the recordable part."""
    try:
        return encode(node_of(error))
    except (EncodeError, NotRecordable):
        return encode(lossy_node_of(error, _is_recordable))


def _is_recordable(value: object) -> bool:
    try:
        encode(value)
    except Exception:
        return False
    return True


def _exception_of_node(node: dict[str, Any], members: tuple[BaseException, ...]) -> BaseException:
    if "value" in node:
        reader = Reader()
        with contextlib.suppress(Exception):
            return read_node(reader.read(node["value"]), members, reader)
    made = RemoteError(node["kind"], node["message"])
    made.exceptions, made.bases = members, tuple(node.get("bases", ()))
    for note in node.get("notes", ()):
        made.add_note(note)
    return made


def _remote_error(content: dict[str, Any]) -> RemoteError:
    """Returns the exception of a failure that was not recorded by Python."""
    made = RemoteError(content["kind"], content["message"])
    last: BaseException = made
    for cause in content.get("causes", ()):
        last.__cause__ = RemoteError("", cause)
        last = last.__cause__
    return made
