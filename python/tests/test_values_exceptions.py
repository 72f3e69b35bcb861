"""Exceptions, as failures and as values."""

import dataclasses
import json
import pathlib
import subprocess
import threading
from collections.abc import Callable
from typing import Any, ClassVar, Self

import attrs
import ormsgpack
import pydantic
import pytest

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


class Told(ValueError):
    def __init__(self, one: int, two: int) -> None:
        self.one, self.two = one, two

    def __str__(self) -> str:
        return f"{self.one} is not {self.two}"


class Slotted(KeyError):
    __slots__ = ("empty", "message", "unset")

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.empty = None


class Missing(FileNotFoundError):
    def __init__(self, where: str) -> None:
        super().__init__(2, "gone", where)


class Several(ExceptionGroup[Exception]):
    def __new__(cls, errors: list[Exception], reason: str = "several") -> Self:
        made = super().__new__(cls, reason, errors)
        made.reason = reason
        return made

    reason: str


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    a: int


@attrs.frozen(auto_exc=True)
class AttrsError(Exception):
    a: int
    b: Any = None


class Holding(Exception):
    def __init__(self, lock: Any) -> None:
        super().__init__("held")
        self.lock = lock


class Owned(Exception):
    def __init__(self, lock: Any, text: str) -> None:
        super().__init__(text)
        self.lock = lock


register(Owned, encode=lambda error: error.args[0], decode=lambda text: Owned(None, text))


def caught(call: Callable[[], Any]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def state_of(error: BaseException) -> Any:
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
        Told(1, 2),
        Slotted("text"),
        Missing("/x"),
        OSError(28, "full", "a", None, "b"),
        caught(pathlib.Path("/nowhere/at/all").read_text),
        caught(lambda: b"\xff".decode()),
        caught(lambda: "\xff".encode("ascii")),
        caught(lambda: compile("a b", "file", "exec")),
        caught(lambda: __import__("no_such_module_here")),
        caught(lambda: json.loads("{")),
        caught(lambda: undefined),  # type: ignore[name-defined] # noqa: F821
        SystemExit(3),
        KeyboardInterrupt(),
        StopIteration(5),
        subprocess.CalledProcessError(3, ["ls"], b"out"),
        subprocess.TimeoutExpired("ls", 1.5),
        ExceptionGroup("two", [ValueError(1), ExceptionGroup("in", [KeyError(2)])]),
        BaseExceptionGroup("base", [KeyboardInterrupt()]),
        Several([ValueError("v")], "because"),
        FrozenError(3),
        AttrsError(3, (4,)),
        DecodeError("d"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_exceptions_come_back(error: BaseException) -> None:
    for back in (decode_exception(encode_exception(error)), decode(encode([error]))[0]):
        assert state_of(back) == state_of(error)


def test_encode_errors_come_back() -> None:
    error = caught(lambda: encode({"a": [object()]}))
    back = decode_exception(encode_exception(error))
    assert isinstance(back, EncodeError)
    assert (back.path, back.type_name, back.code) == ("value['a'][0]", "object", "SF-0030")


def chained() -> BaseException:
    def fail() -> None:
        try:
            try:
                raise KeyError("first")
            except KeyError:
                raise ValueError("second")
        except ValueError as error:
            error.add_note("a note")
            raise Declined("o", code=1) from error

    return caught(fail)


def test_causes_contexts_and_notes_come_back() -> None:
    error = chained()
    for back in (decode_exception(encode_exception(error)), decode(encode(error))):
        assert state_of(back) == state_of(error)
        assert isinstance(back.__cause__, ValueError)
        assert back.__cause__.__notes__ == ["a note"]
        assert back.__context__ is back.__cause__
        assert isinstance(back.__cause__.__context__, KeyError)


def test_a_hidden_context_is_not_recorded() -> None:
    def fail() -> None:
        try:
            raise Holding(threading.Lock())
        except Holding:
            raise ValueError from None

    back = decode(encode(caught(fail)))
    assert back.__context__ is None
    assert back.__suppress_context__


def test_exceptions_that_lead_to_themselves_come_back() -> None:
    one, two = ValueError(1), KeyError(2)
    one.__cause__, two.__cause__ = two, one
    back = decode_exception(encode_exception(one))
    assert back.__cause__ is not None
    assert back.__cause__.__cause__ is back


def test_long_chains_come_back() -> None:
    error: BaseException = ValueError(0)
    for i in range(1, 3000):
        following = ValueError(i)
        following.__cause__ = error
        error = following
    back: BaseException | None = decode_exception(encode_exception(error))
    for i in range(2999, -1, -1):
        assert back is not None
        assert back.args == (i,)
        back = back.__cause__


def test_every_language_reads_what_went_wrong() -> None:
    content = ormsgpack.unpackb(encode_exception(chained()))
    assert content["kind"] == "test_values_exceptions.Declined"
    assert content["message"] == "o was declined with 1"
    assert content["causes"] == ["second", "'first'"]


def test_a_failure_of_another_language_is_read() -> None:
    data = ormsgpack.packb({"kind": "io::Error", "message": "no order", "causes": ["a", "b"]})
    back = decode_exception(data)
    assert isinstance(back, RemoteError)
    assert (back.kind, back.message, str(back)) == ("io::Error", "no order", "io::Error: no order")
    assert str(back.__cause__) == "a"
    assert back.__cause__ is not None
    assert str(back.__cause__.__cause__) == "b"


class Lying(Exception):
    """Says something only as long as its constructor knows it."""

    known: ClassVar[list[BaseException]] = []

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.known.append(self)

    def __str__(self) -> str:
        return self.args[0] if any(self is each for each in self.known) else "forgotten"


class Mute(Exception):
    def __str__(self) -> str:
        raise KeyError


def local() -> BaseException:
    class Local(Exception):
        pass

    error = Local("from here")
    error.add_note("note")
    error.__cause__ = ValueError("kept")
    return error


def pydantics() -> BaseException:
    class Model(pydantic.BaseModel):
        a: int

    return caught(lambda: Model(a="x"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (local(), "test_values_exceptions.local.<locals>.Local", "from here"),
        (Holding(threading.Lock()), "test_values_exceptions.Holding", "held"),
        (Lying("once"), "test_values_exceptions.Lying", "once"),
        (ValueError("\ud800"), "ValueError", "\\ud800"),
        (ValueError(len), "ValueError", "<built-in function len>"),
        (pydantics(), "pydantic_core._pydantic_core.ValidationError", "1 validation error"),
        (Holding(Holding(threading.Lock())), "test_values_exceptions.Holding", "held"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_made_again_is_told(error: BaseException, kind: str, message: str) -> None:
    data = encode_exception(error)
    back = decode_exception(data)
    assert type(back) is RemoteError
    assert back.kind == kind
    assert back.message.startswith(message)
    assert getattr(back, "__notes__", None) == getattr(error, "__notes__", None)
    assert state_of(back)[-2][0] == (error.__cause__ and state_of(error.__cause__))
    again = decode_exception(encode_exception(back))
    assert state_of(again) == state_of(back)
    with pytest.raises(EncodeError):
        encode(error)


def test_an_exception_without_text_is_recorded() -> None:
    back = decode_exception(encode_exception(Mute()))
    assert type(back) is Mute


def test_only_what_cannot_be_made_again_is_replaced() -> None:
    error = ValueError("outer")
    error.__cause__ = Holding(threading.Lock())
    error.__cause__.__cause__ = KeyError("inner")
    group = ExceptionGroup("group", [error, local()])  # type: ignore[list-item]
    back = decode_exception(encode_exception(group))
    assert isinstance(back, ExceptionGroup)
    first, second = back.exceptions
    assert type(first) is ValueError
    assert type(first.__cause__) is RemoteError
    assert type(first.__cause__.__cause__) is KeyError
    assert type(second) is RemoteError


def test_a_group_that_cannot_be_made_again_keeps_its_members() -> None:
    class Local(ExceptionGroup[Exception]):
        pass

    back = decode_exception(encode_exception(Local("g", [ValueError(1)])))
    assert isinstance(back, RemoteError)
    assert [repr(each) for each in back.exceptions] == ["ValueError(1)"]
    again = decode_exception(encode_exception(back))
    assert isinstance(again, RemoteError)
    assert [repr(each) for each in again.exceptions] == ["ValueError(1)"]


def test_a_class_that_went_away_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    error = Declined("o", code=1)
    data, value = encode_exception(error), encode(error)
    monkeypatch.delattr(f"{__name__}.Declined")
    back = decode_exception(data)
    assert type(back) is RemoteError
    assert back.kind == "test_values_exceptions.Declined"
    with pytest.raises(DecodeError, match="class Declined of module test_values_exceptions"):
        decode(value)
    monkeypatch.setattr(f"{__name__}.Declined", int, raising=False)
    with pytest.raises(DecodeError, match="is no exception, but it was one"):
        decode(value)


def test_registered_exceptions_keep_causes_and_notes() -> None:
    error = Owned(threading.Lock(), "text")
    error.__cause__ = ValueError(1)
    error.add_note("note")
    for back in (decode_exception(encode_exception(error)), decode(encode(error))):
        assert type(back) is Owned
        assert (back.args, back.__notes__) == (("text",), ["note"])
        assert type(back.__cause__) is ValueError


@pytest.mark.parametrize("data", [b"", b"\xc0", b"\x01", b"\x80", encode(5), encode({"python": 1})])
def test_bytes_that_are_no_failure_are_refused(data: bytes) -> None:
    with pytest.raises(DecodeError, match="no recorded failure"):
        decode_exception(data)
