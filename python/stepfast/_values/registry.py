"""Which codec a class has, and `register` for classes of one's own."""

import enum
import functools
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar, overload

from . import (
    arrays,
    codes,
    containers,
    enums,
    exceptions,
    objects,
    references,
    scalars,
    times,
    urls,
)
from .codec import Codec, Names, RawRead, Read, derives, own_codecs
from .errors import DecodeError, Refusal, type_name

T = TypeVar("T")

PLAIN: Final = frozenset({type(None), bool, int, float, str, bytes, list, dict})

_BUILT_IN: Final[dict[type, Codec]] = {
    **scalars.CODECS,
    **times.CODECS,
    **containers.CODECS,
    type: enums.CLASS,
}
codecs: Final[dict[type, Codec]] = dict(_BUILT_IN)

_ADVICE: Final[dict[str, str]] = {
    "function": "record what the function is called with, and its name, instead",
    "generator": "make it a list: list(...)",
    "coroutine": "await it first, and record what it gives",
    "memoryview": "make it bytes: bytes(...)",
    "module": "record its name instead",
}


def codec_of(cls: type) -> Codec:
    """The codec of exactly this class.

    Raises:
        Refusal: It has none.
    """
    codec = codecs.get(cls)
    if codec is None:
        codec = codecs[cls] = _derive(cls)
    return codec


def _derive(cls: type[Any]) -> Codec:
    if derives(cls, type):
        return enums.CLASS
    if derives(cls, enum.Enum):
        return enums.enum_codec(cls)
    if derives(cls, BaseException):
        return exceptions.CODEC
    if (codec := arrays.codec_of(cls)) is not None:
        return codec
    if (codec := urls.codec_of(cls)) is not None:
        return codec
    if (shape := objects.shape_of(cls)) is not None:
        return objects.object_codec(cls, shape)
    if (advice := _ADVICE.get(cls.__name__)) is not None:
        raise Refusal(f"a {cls.__name__} cannot be recorded", advice)
    base = next((base for base in cls.__mro__[1:-1] if base in PLAIN or base in codecs), None)
    if base is not None:
        raise Refusal(
            f"it would come back as a {type_name(base)}, not as the subclass that it is",
            f"convert it to a {base.__name__}, or register a codec for it with stepfast.values.register",
        )
    raise Refusal("no codec is known for this type")


READERS: Final[dict[int, Read]] = {
    **scalars.READERS,
    **times.READERS,
    **containers.READERS,
    **arrays.READERS,
    **urls.READERS,
    codes.ENUM: enums.read_enum,
    codes.FLAG: enums.read_flag,
    codes.CLASS: enums.read_class,
    codes.OBJECT: objects.read_object,
    codes.EXCEPTION: exceptions.read_exception,
}
RAW_READERS: Final[dict[int, RawRead]] = arrays.RAW_READERS


def _read_registered(content: list[Any], names: Names) -> object:
    cls = names.find(content[0])
    own = own_codecs.get(cls)
    if own is None:
        raise DecodeError(
            f"no codec is registered for {type_name(cls)}, but there was one when the value was recorded: "
            "register it (stepfast.values.register) before values are read"
        )
    return own[1](content[1])


READERS[codes.REGISTERED] = _read_registered


@overload
def register(
    cls: type[T],
    *,
    encode: Callable[[T], object] | None = None,
    decode: Callable[[Any], T] | None = None,
    name: str | None = None,
    aliases: Iterable[str] = (),
) -> type[T]: ...


@overload
def register(*, name: str | None = None, aliases: Iterable[str] = ()) -> Callable[[type[T]], type[T]]: ...


def register(
    cls: type[Any] | None = None,
    *,
    encode: Callable[[Any], object] | None = None,
    decode: Callable[[Any], Any] | None = None,
    name: str | None = None,
    aliases: Iterable[str] = (),
) -> Any:
    """Says how values of a class are recorded, or only by which name.

    Applies to exactly this class, not to its subclasses. To be called when the module of the class is
    imported, so that every worker knows it before it reads values. `@register` and `@register(name=...)`
    work as decorators.

    Args:
        cls: The class.
        encode: Gives a value that can be recorded for one of the class.
        decode: Makes an equal value of the class from that. Both functions, or none for a class that
            can be recorded without and only gets names.
        name: The stable name it is recorded under, instead of `module:qualname`; the class may then
            be moved, renamed, or local.
        aliases: Names under which it was recorded earlier, such as `shop.models:Order`.

    Raises:
        ValueError: The class is built in, or has another codec or name already, or a name is taken.
        TypeError: Only one of `encode` and `decode` is given.
    """
    if cls is None:
        return functools.partial(register, name=name, aliases=aliases)
    if (encode is None) != (decode is None):
        raise TypeError("register takes both encode and decode, or neither")
    if cls in PLAIN or cls in _BUILT_IN:
        raise ValueError(f"{type_name(cls)} has a codec that cannot be replaced")
    names = [*([] if name is None else [name]), *aliases]
    _check_free(cls, names, name, is_own=encode is not None)
    for each in names:
        references.class_of_name[each] = cls
    if name is not None:
        references.name_of_class[cls] = name
    codecs.pop(cls, None)
    if encode is not None and decode is not None:
        own_codecs[cls] = (encode, decode)
        if not issubclass(cls, BaseException):
            codecs[cls] = _registered_codec(cls, encode)
    return cls


def _check_free(cls: type, names: list[str], name: str | None, *, is_own: bool) -> None:
    if is_own and cls in own_codecs:
        raise ValueError(f"{type_name(cls)} has a codec already")
    if name is not None and references.name_of_class.get(cls, name) != name:
        raise ValueError(f"{type_name(cls)} is registered as {references.name_of_class[cls]!r} already")
    for each in names:
        other = references.class_of_name.get(each, cls)
        if not each or (other is not cls and _place(other) != _place(cls)):
            raise ValueError(f"the name {each!r} is taken by {type_name(other)}")


def _place(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def _registered_codec(cls: type, encode: Callable[[Any], object]) -> Codec:
    def reduce(value: object) -> list[object]:
        return [references.name_of(cls), encode(value)]

    return Codec(codes.REGISTERED, reduce)
