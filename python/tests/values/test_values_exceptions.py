"""Exceptions as recorded failures and as recorded values."""

import copy
import dataclasses
import json
import pathlib
import pickle
import subprocess
import threading
from collections.abc import Callable
from typing import Any, ClassVar, Self

import attrs
import ormsgpack
import pytest

from stepfast import Error, InvalidArgument, StoreCorrupt, WorkflowParked
from stepfast.values import (
    DecodeError,
    EncodeError,
    RemoteError,
    decode,
    decode_exception,
    encode,
    encode_exception,
    register,
)


class Declined(Exception):
    def __init__(self, order: str, *, code: int) -> None:
        super().__init__(f"{order} was declined with {code}")
        self.order = order
        self.code = code


class ComputedTextError(ValueError):
    def __init__(self, actual: int, expected: int) -> None:
        self.actual, self.expected = actual, expected

    def __str__(self) -> str:
        return f"{self.actual} is not {self.expected}"


class SlottedError(KeyError):
    __slots__ = ("empty", "message", "unset")

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.empty = None


class MissingFile(FileNotFoundError):
    def __init__(self, path: str) -> None:
        super().__init__(2, "missing", path)


class ReasonedGroup(ExceptionGroup[Exception]):
    def __new__(cls, errors: list[Exception], reason: str = "several") -> Self:
        group = super().__new__(cls, reason, errors)
        group.reason = reason
        return group

    reason: str


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    a: int


@attrs.frozen(auto_exc=True)
class AttrsError(Exception):
    a: int
    b: Any = None


class LockError(Exception):
    def __init__(self, lock: Any) -> None:
        super().__init__("locked")
        self.lock = lock


class RegisteredError(Exception):
    def __init__(self, lock: Any, text: str) -> None:
        super().__init__(text)
        self.lock = lock


register(RegisteredError, encode=lambda error: error.args[0], decode=lambda text: RegisteredError(None, text))


def exception_of(call: Callable[[], Any]) -> BaseException:
    """Returns the exception that a call raises."""
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def state_of(error: BaseException) -> Any:
    """Returns everything of an exception that a record must keep."""
    fields = ("errno", "strerror", "filename", "filename2", "name", "path", "msg", "code", "value")
    fields += (
        "object",
        "start",
        "end",
        "reason",
        "encoding",
        "lineno",
        "offset",
        "text",
        "message",
    )
    parts = [state_of(each) for each in getattr(error, "exceptions", ())]
    state = {name: getattr(error, name, None) for name in fields}
    chain = [each and state_of(each) for each in (error.__cause__, error.__context__)]
    args = () if parts else error.args
    return (
        type(error),
        args,
        str(error),
        vars(error),
        state,
        parts,
        chain,
        error.__suppress_context__,
    )


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x", 1, (2,)),
        KeyError("k"),
        Declined("order-7", code=5),
        ComputedTextError(1, 2),
        SlottedError("text"),
        MissingFile("/x"),
        OSError(28, "full", "a", None, "b"),
        exception_of(pathlib.Path("/nowhere/at/all").read_text),
        exception_of(lambda: b"\xff".decode()),
        exception_of(lambda: "\xff".encode("ascii")),
        exception_of(lambda: compile("a b", "file", "exec")),
        exception_of(lambda: __import__("no_such_module_here")),
        exception_of(lambda: json.loads("{")),
        exception_of(lambda: undefined),  # type: ignore[name-defined] # noqa: F821
        SystemExit(3),
        KeyboardInterrupt(),
        StopIteration(5),
        subprocess.CalledProcessError(3, ["ls"], b"out"),
        subprocess.TimeoutExpired("ls", 1.5),
        ExceptionGroup("two", [ValueError(1), ExceptionGroup("in", [KeyError(2)])]),
        BaseExceptionGroup("base", [KeyboardInterrupt()]),
        ReasonedGroup([ValueError("v")], "because"),
        FrozenError(3),
        AttrsError(3, (4,)),
        DecodeError("d"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_exception_survives_round_trip(error: BaseException) -> None:
    for decoded in (decode_exception(encode_exception(error)), decode(encode([error]))[0]):
        assert state_of(decoded) == state_of(error)


def test_encode_error_keeps_its_attributes() -> None:
    error = exception_of(lambda: encode({"a": [object()]}))
    decoded = decode_exception(encode_exception(error))
    assert isinstance(decoded, EncodeError)
    assert (decoded.path, decoded.type_name, decoded.code) == ("value['a'][0]", "object", "SF-0030")


def make_chained_error() -> BaseException:
    """Returns an exception with a cause, a context and a note."""

    def fail() -> None:
        try:
            try:
                raise KeyError("first")
            except KeyError:
                raise ValueError("second")
        except ValueError as error:
            error.add_note("a note")
            raise Declined("o", code=1) from error

    return exception_of(fail)


def test_causes_contexts_and_notes_survive_round_trip() -> None:
    error = make_chained_error()
    for decoded in (decode_exception(encode_exception(error)), decode(encode(error))):
        assert state_of(decoded) == state_of(error)
        assert isinstance(decoded.__cause__, ValueError)
        assert decoded.__cause__.__notes__ == ["a note"]
        assert decoded.__context__ is decoded.__cause__
        assert isinstance(decoded.__cause__.__context__, KeyError)


def test_suppressed_context_is_not_recorded() -> None:
    def fail() -> None:
        try:
            raise LockError(threading.Lock())
        except LockError:
            raise ValueError from None

    decoded = decode(encode(exception_of(fail)))
    assert decoded.__context__ is None
    assert decoded.__suppress_context__


def test_cycle_of_causes_survives_round_trip() -> None:
    first, second = ValueError(1), KeyError(2)
    first.__cause__, second.__cause__ = second, first
    decoded = decode_exception(encode_exception(first))
    assert decoded.__cause__ is not None
    assert decoded.__cause__.__cause__ is decoded


def test_long_chain_of_causes_survives_round_trip() -> None:
    error: BaseException = ValueError(0)
    for i in range(1, 3000):
        following = ValueError(i)
        following.__cause__ = error
        error = following
    decoded: BaseException | None = decode_exception(encode_exception(error))
    for i in range(2999, -1, -1):
        assert decoded is not None
        assert decoded.args == (i,)
        decoded = decoded.__cause__


def test_failure_is_readable_in_every_language() -> None:
    content = ormsgpack.unpackb(encode_exception(make_chained_error()))
    assert content["kind"] == "test_values_exceptions.Declined"
    assert content["message"] == "o was declined with 1"
    assert content["causes"] == ["second", "'first'"]


def test_failure_of_another_language_becomes_remote_error() -> None:
    data = ormsgpack.packb({"kind": "io::Error", "message": "no order", "causes": ["a", "b"]})
    decoded = decode_exception(data)
    assert isinstance(decoded, RemoteError)
    assert (decoded.kind, decoded.message, str(decoded)) == ("io::Error", "no order", "io::Error: no order")
    assert str(decoded.__cause__) == "a"
    assert decoded.__cause__ is not None
    assert str(decoded.__cause__.__cause__) == "b"


class ConstructedTextError(Exception):
    """An exception that has its text only if its constructor was called."""

    constructed: ClassVar[list[BaseException]] = []

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.constructed.append(self)

    def __str__(self) -> str:
        return self.args[0] if any(self is each for each in self.constructed) else "not constructed"


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise KeyError


def make_local_error() -> BaseException:
    """Returns an exception whose class is defined inside a function."""

    class Local(Exception):
        pass

    error = Local("local error")
    error.add_note("note")
    error.__cause__ = ValueError("kept")
    return error


class SubclassRegistry(Exception):
    """An exception class that registers its subclasses."""

    subclasses: ClassVar[list[type]] = []

    def __init_subclass__(cls) -> None:
        cls.subclasses.append(cls)


def make_error_of_registering_class() -> BaseException:
    """Returns an unrecordable exception whose class must not get a subclass."""
    error = SubclassRegistry("counted")
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (make_local_error(), "test_values_exceptions.make_local_error.<locals>.Local", "local error"),
        (make_error_of_registering_class(), "test_values_exceptions.SubclassRegistry", "counted"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_exception_of_unknown_class_becomes_remote_error(
    error: BaseException, kind: str, message: str
) -> None:
    data = encode_exception(error)
    decoded = decode_exception(data)
    assert type(decoded) is RemoteError
    assert decoded.kind == kind
    assert decoded.message.startswith(message)
    assert getattr(decoded, "__notes__", None) == getattr(error, "__notes__", None)
    assert state_of(decoded)[-2][0] == (error.__cause__ and state_of(error.__cause__))
    decoded_again = decode_exception(encode_exception(decoded))
    assert state_of(decoded_again) == state_of(decoded)
    with pytest.raises(EncodeError):
        encode(error)
    assert SubclassRegistry.subclasses == []


@pytest.mark.parametrize(
    ("error", "text", "args", "missing"),
    [
        (LockError(threading.Lock()), "locked", ("locked",), "lock"),
        (ConstructedTextError("once"), "once", ("once",), None),
        (ValueError("\ud800"), "\\ud800", ("\\ud800",), None),
        (ValueError(len), "<built-in function len>", ("<built-in function len>",), None),
        (KeyError(len), "<built-in function len>", ("<built-in function len>",), None),
        (LockError(LockError(threading.Lock())), "locked", ("locked",), "lock"),
        (OSError(28, "full", len), str(OSError(28, "full", len)), (28, "full"), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_unrecordable_exception_is_decoded_in_part(
    error: BaseException, text: str, args: tuple[Any, ...], missing: str | None
) -> None:
    error.add_note("a note")
    error.__cause__ = KeyError("cause")
    decoded = error
    # a partial exception can be recorded again, also as a value
    for _ in range(2):
        decoded = decode_exception(encode_exception(decoded))
        assert isinstance(decoded, type(error)) and type(decoded).__qualname__ == type(error).__qualname__
        assert (str(decoded), repr(decoded)) == (text, f"{type(error).__name__}({text!r})")
        assert decoded.__notes__ == ["a note"] and isinstance(decoded.__cause__, KeyError)
        assert decoded.args == args
        if missing is not None:
            with pytest.raises(AttributeError, match=f"no attribute '{missing}': it could not be recorded"):
                getattr(decoded, missing)
        with pytest.raises(AttributeError, match="no attribute 'unknown'$"):
            decoded.unknown  # type: ignore[attr-defined] # noqa: B018
    assert str(decode(encode([decoded]))[0]) == text
    for copied in (copy.copy(decoded), pickle.loads(pickle.dumps(decoded))):
        assert isinstance(copied, type(error)) and (str(copied), repr(copied)) == (
            str(decoded),
            repr(decoded),
        )
    with pytest.raises(EncodeError):
        encode(error)


def test_partial_exception_keeps_recordable_attributes() -> None:
    error = LockError(threading.Lock())
    error.order, error.count = "order-7", 3  # type: ignore[attr-defined]
    decoded: Any = decode_exception(encode_exception(error))
    assert (decoded.order, decoded.count) == ("order-7", 3)
    decoded.count = 4
    assert decoded.count == 4
    # a partial exception may be an attribute of another exception
    error.reason = decoded  # type: ignore[attr-defined]
    outer: Any = decode_exception(encode_exception(error))
    assert isinstance(outer.reason, LockError) and outer.reason.order == "order-7"


def test_partial_exception_group_keeps_its_members() -> None:
    members: list[Any] = [ValueError("v"), LockError(threading.Lock())]
    group = ReasonedGroup(members, "because")
    group.lock = threading.Lock()  # type: ignore[attr-defined]
    decoded: Any = decode_exception(encode_exception(group))
    assert isinstance(decoded, ReasonedGroup) and decoded.reason == "because"
    assert [type(each).__name__ for each in decoded.exceptions] == ["ValueError", "LockError"]
    matched, rest = decoded.split(ValueError)
    assert [str(each) for each in matched.exceptions] == ["v"] and rest is not None


def test_earlier_names_of_exceptions_are_decoded() -> None:
    for earlier_class, cls in (
        ("Invalid", InvalidArgument),
        ("Parked", WorkflowParked),
        ("Corrupt", StoreCorrupt),
    ):
        name = f"stepfast.errors:{cls.__qualname__}".encode()
        data = encode(cls("wrong", "SF-0099"))
        assert name in data
        earlier_name = f"stepfast.errors:{earlier_class}".encode()
        head = data.index(name) - 1
        # the head of the text, and the length of the extension
        assert data[head] == 0xA0 | len(name) and data[0] == 0xC7
        data = (
            bytes((0xC7, data[1] - len(name) + len(earlier_name)))
            + data[2:head]
            + bytes((0xA0 | len(earlier_name),))
        )
        data += earlier_name + encode(cls("wrong", "SF-0099"))[head + 1 + len(name) :]
        decoded = decode(data)
        assert type(decoded) is cls and (str(decoded), decoded.code) == ("wrong", "SF-0099")


def test_remote_error_has_bases_of_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    cls, data = MissingFile, encode_exception(MissingFile("/x"))
    monkeypatch.delattr(f"{__name__}.MissingFile")
    for _ in range(2):
        decoded = decode_exception(data)
        assert isinstance(decoded, RemoteError) and isinstance(decoded, Error) and decoded.code == "SF-0008"
        assert decoded.kind == f"{__name__}.MissingFile"
        assert decoded.bases == ("FileNotFoundError", "OSError")
        assert decoded.is_a(cls) and decoded.is_a(OSError) and decoded.is_a(Exception)
        assert not decoded.is_a(ValueError) and not decoded.is_a(PermissionError)
        data = encode_exception(decoded)
        assert state_of(decode(encode(decoded))) == state_of(decoded)


def test_unprintable_exception_is_recorded() -> None:
    decoded = decode_exception(encode_exception(UnprintableError()))
    assert type(decoded) is UnprintableError


def test_remote_error_replaces_only_unknown_classes() -> None:
    error = ValueError("outer")
    error.__cause__ = make_error_of_registering_class()
    error.__cause__.__cause__ = KeyError("inner")
    group = ExceptionGroup("group", [error, make_local_error()])  # type: ignore[list-item]
    decoded = decode_exception(encode_exception(group))
    assert isinstance(decoded, ExceptionGroup)
    first, second = decoded.exceptions
    assert type(first) is ValueError
    assert type(first.__cause__) is RemoteError
    assert type(first.__cause__.__cause__) is KeyError
    assert type(second) is RemoteError


def test_group_of_unknown_class_keeps_its_members() -> None:
    class Local(ExceptionGroup[Exception]):
        pass

    decoded = decode_exception(encode_exception(Local("g", [ValueError(1)])))
    assert isinstance(decoded, RemoteError)
    assert [repr(each) for each in decoded.exceptions] == ["ValueError(1)"]
    decoded_again = decode_exception(encode_exception(decoded))
    assert isinstance(decoded_again, RemoteError)
    assert [repr(each) for each in decoded_again.exceptions] == ["ValueError(1)"]


def test_removed_exception_class_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    error = Declined("o", code=1)
    data, value = encode_exception(error), encode(error)
    monkeypatch.delattr(f"{__name__}.Declined")
    decoded = decode_exception(data)
    assert type(decoded) is RemoteError
    assert decoded.kind == "test_values_exceptions.Declined"
    with pytest.raises(DecodeError, match="class Declined of module test_values_exceptions"):
        decode(value)
    monkeypatch.setattr(f"{__name__}.Declined", int, raising=False)
    with pytest.raises(DecodeError, match="is no exception, but it was one"):
        decode(value)


def test_registered_exception_keeps_causes_and_notes() -> None:
    error = RegisteredError(threading.Lock(), "text")
    error.__cause__ = ValueError(1)
    error.add_note("note")
    for decoded in (decode_exception(encode_exception(error)), decode(encode(error))):
        assert type(decoded) is RegisteredError
        assert (decoded.args, decoded.__notes__) == (("text",), ["note"])
        assert type(decoded.__cause__) is ValueError


@pytest.mark.parametrize("data", [b"", b"\xc0", b"\x01", b"\x80", encode(5), encode({"python": 1})])
def test_malformed_failure_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError, match="no recorded failure"):
        decode_exception(data)
