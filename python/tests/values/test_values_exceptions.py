"""Exceptions, as failures and as values."""

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


class Counting(Exception):
    """Keeps account of its subclasses."""

    subclasses: ClassVar[list[type]] = []

    def __init_subclass__(cls) -> None:
        cls.subclasses.append(cls)


def holding_class() -> BaseException:
    error = Counting("counted")
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (local(), "test_values_exceptions.local.<locals>.Local", "from here"),
        (holding_class(), "test_values_exceptions.Counting", "counted"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_exception_of_an_unknown_class_becomes_a_remote_error(
    error: BaseException, kind: str, message: str
) -> None:
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
    assert Counting.subclasses == []


@pytest.mark.parametrize(
    ("error", "text", "args", "missing"),
    [
        (Holding(threading.Lock()), "held", ("held",), "lock"),
        (Lying("once"), "once", ("once",), None),
        (ValueError("\ud800"), "\\ud800", ("\\ud800",), None),
        (ValueError(len), "<built-in function len>", ("<built-in function len>",), None),
        (KeyError(len), "<built-in function len>", ("<built-in function len>",), None),
        (Holding(Holding(threading.Lock())), "held", ("held",), "lock"),
        (OSError(28, "full", len), str(OSError(28, "full", len)), (28, "full"), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_exception_that_holds_too_much_comes_back_in_part(
    error: BaseException, text: str, args: tuple[Any, ...], missing: str | None
) -> None:
    error.add_note("a note")
    error.__cause__ = KeyError("cause")
    back = error
    # a part is recorded again as it is, also as a value
    for _ in range(2):
        back = decode_exception(encode_exception(back))
        assert isinstance(back, type(error)) and type(back).__qualname__ == type(error).__qualname__
        assert (str(back), repr(back)) == (text, f"{type(error).__name__}({text!r})")
        assert back.__notes__ == ["a note"] and isinstance(back.__cause__, KeyError)
        assert back.args == args
        if missing is not None:
            with pytest.raises(AttributeError, match=f"no attribute '{missing}': it could not be recorded"):
                getattr(back, missing)
        with pytest.raises(AttributeError, match="no attribute 'unheard_of'$"):
            back.unheard_of  # type: ignore[attr-defined] # noqa: B018
    assert str(decode(encode([back]))[0]) == text
    for copied in (copy.copy(back), pickle.loads(pickle.dumps(back))):
        assert isinstance(copied, type(error)) and (str(copied), repr(copied)) == (str(back), repr(back))
    with pytest.raises(EncodeError):
        encode(error)


def test_part_keeps_the_attributes_that_can_be_recorded() -> None:
    error = Holding(threading.Lock())
    error.order, error.count = "order-7", 3  # type: ignore[attr-defined]
    back: Any = decode_exception(encode_exception(error))
    assert (back.order, back.count) == ("order-7", 3)
    back.count = 4
    assert back.count == 4
    # an exception in part may be an attribute of another one
    error.reason = back  # type: ignore[attr-defined]
    outer: Any = decode_exception(encode_exception(error))
    assert isinstance(outer.reason, Holding) and outer.reason.order == "order-7"


def test_group_that_holds_too_much_keeps_its_members() -> None:
    group = Several([ValueError("v"), Holding(threading.Lock())], "because")  # type: ignore[list-item]
    group.lock = threading.Lock()  # type: ignore[attr-defined]
    back: Any = decode_exception(encode_exception(group))
    assert isinstance(back, Several) and back.reason == "because"
    assert [type(each).__name__ for each in back.exceptions] == ["ValueError", "Holding"]
    matched, rest = back.split(ValueError)
    assert [str(each) for each in matched.exceptions] == ["v"] and rest is not None


def test_exceptions_are_recorded_by_earlier_names() -> None:
    for old, cls in (
        ("Invalid", InvalidArgument),
        ("Parked", WorkflowParked),
        ("Corrupt", StoreCorrupt),
    ):
        name = f"stepfast.errors:{cls.__qualname__}".encode()
        data = encode(cls("wrong", "SF-0099"))
        assert name in data
        before = f"stepfast.errors:{old}".encode()
        head = data.index(name) - 1
        # the text's own head, and the length of the extension
        assert data[head] == 0xA0 | len(name) and data[0] == 0xC7
        data = bytes((0xC7, data[1] - len(name) + len(before))) + data[2:head] + bytes((0xA0 | len(before),))
        data += before + encode(cls("wrong", "SF-0099"))[head + 1 + len(name) :]
        back = decode(data)
        assert type(back) is cls and (str(back), back.code) == ("wrong", "SF-0099")


def test_remote_error_knows_the_bases_of_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    cls, data = Missing, encode_exception(Missing("/x"))
    monkeypatch.delattr(f"{__name__}.Missing")
    for _ in range(2):
        back = decode_exception(data)
        assert isinstance(back, RemoteError) and isinstance(back, Error) and back.code == "SF-0008"
        assert back.kind == f"{__name__}.Missing"
        assert back.bases == ("FileNotFoundError", "OSError")
        assert back.is_a(cls) and back.is_a(OSError) and back.is_a(Exception)
        assert not back.is_a(ValueError) and not back.is_a(PermissionError)
        data = encode_exception(back)
        assert state_of(decode(encode(back))) == state_of(back)


def test_an_exception_without_text_is_recorded() -> None:
    back = decode_exception(encode_exception(Mute()))
    assert type(back) is Mute


def test_only_what_cannot_be_made_again_is_replaced() -> None:
    error = ValueError("outer")
    error.__cause__ = holding_class()
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
