"""Finds the codec of a class. With `register`, programs add codecs of their own."""

import enum
import functools
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar, overload

from stepfast.errors import InvalidArgument

from . import codes, references
from .codec import BytesReader, ClassFinder, Codec, ContentReader, derives_from, own_codecs
from .codecs import arrays, containers, enums, objects, scalars, times, urls
from .errors import DecodeError, NotRecordable, type_name
from .exceptions import codec as exceptions

T = TypeVar("T")

PLAIN_TYPES: Final = frozenset({type(None), bool, int, float, str, bytes, list, dict})

_BUILT_IN: Final[dict[type, Codec]] = {
    **scalars.CODECS,
    **times.CODECS,
    **containers.CODECS,
    type: enums.CLASS_CODEC,
}
codec_by_class: Final[dict[type, Codec]] = dict(_BUILT_IN)

_ADVICE: Final[dict[str, str]] = {
    "function": "record what the function is called with, and its name, instead",
    "generator": "make it a list: list(...)",
    "coroutine": "await it first, and record what it gives",
    "memoryview": "make it bytes: bytes(...)",
    "module": "record its name instead",
}


def codec_of(cls: type) -> Codec:
    """Returns the codec of exactly this class.

    Raises:
        NotRecordable: The class has no codec.
    """
    codec = codec_by_class.get(cls)
    if codec is None:
        codec = codec_by_class[cls] = _derive_codec(cls)
    return codec


def _derive_codec(cls: type[Any]) -> Codec:
    if derives_from(cls, type):
        return enums.CLASS_CODEC
    if derives_from(cls, enum.Enum):
        return enums.enum_codec(cls)
    if derives_from(cls, BaseException):
        return exceptions.CODEC
    if (codec := arrays.codec_of(cls)) is not None:
        return codec
    if (codec := urls.codec_of(cls)) is not None:
        return codec
    if (shape := objects.shape_of(cls)) is not None:
        return objects.object_codec(cls, shape)
    if (advice := _ADVICE.get(cls.__name__)) is not None:
        raise NotRecordable(f"a {cls.__name__} cannot be recorded", advice)
    base = next((base for base in cls.__mro__[1:-1] if base in PLAIN_TYPES or base in codec_by_class), None)
    if base is not None:
        raise NotRecordable(
            f"it would come back as a {type_name(base)}, not as the subclass that it is",
            f"convert it to a {base.__name__}, or register a codec for it with stepfast.values.register",
        )
    raise NotRecordable("no codec is known for this type")


READERS: Final[dict[int, ContentReader]] = {
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
RAW_READERS: Final[dict[int, BytesReader]] = arrays.RAW_READERS


def _read_registered(content: list[Any], finder: ClassFinder) -> object:
    cls = finder.find(content[0])
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
    """Registers two functions by which values of a class are recorded, or only names of the class.

    The registration applies to exactly this class, not to its subclasses. Call `register` in the module of
    the class, so that every worker has registered the class before it reads values. `@register` and
    `@register(name=...)` work as decorators.

    Args:
        cls: The class.
        encode: A function that converts an instance to a value that can be recorded. None by default.
        decode: A function that rebuilds an equal instance from that value. None by default. Give both
            functions, or neither for a class that can be recorded without them and only gets names.
        name: The stable name under which the class is recorded; `module:qualname` by default. A class with a
            stable name may be moved, renamed, or local to a function.
        aliases: Names under which the class was recorded earlier, such as `shop.models:Order`. None by
            default.

    Raises:
        InvalidArgument: The class is built in, has another codec or name already, or a name is taken.
        TypeError: Only one of `encode` and `decode` is given.
    """
    if cls is None:
        return functools.partial(register, name=name, aliases=aliases)
    if (encode is None) != (decode is None):
        raise TypeError("register takes both encode and decode, or neither")
    if cls in PLAIN_TYPES or cls in _BUILT_IN:
        raise InvalidArgument(f"{type_name(cls)} has a codec that cannot be replaced")
    names = [*([] if name is None else [name]), *aliases]
    _check_names_free(cls, names, name, has_codec=encode is not None)
    for each in names:
        references.class_of_name[each] = cls
    if name is not None:
        references.name_of_class[cls] = name
    codec_by_class.pop(cls, None)
    if encode is not None and decode is not None:
        own_codecs[cls] = (encode, decode)
        if not issubclass(cls, BaseException):
            codec_by_class[cls] = _registered_codec(cls, encode)
    return cls


def _check_names_free(cls: type, names: list[str], name: str | None, *, has_codec: bool) -> None:
    if has_codec and cls in own_codecs:
        raise InvalidArgument(f"{type_name(cls)} has a codec already")
    if name is not None and references.name_of_class.get(cls, name) != name:
        raise InvalidArgument(f"{type_name(cls)} is registered as {references.name_of_class[cls]!r} already")
    for each in names:
        other = references.class_of_name.get(each, cls)
        if not each or (other is not cls and _origin(other) != _origin(cls)):
            raise InvalidArgument(f"the name {each!r} is taken by {type_name(other)}")


def _origin(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def _registered_codec(cls: type, encode: Callable[[Any], object]) -> Codec:
    def reduce(value: object) -> list[object]:
        return [references.name_of(cls), encode(value)]

    return Codec(codes.REGISTERED, reduce)
