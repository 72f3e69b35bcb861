"""The careful way to encode: knows where it is, so it can say what is wrong where."""

from typing import Any, Final, cast

from ormsgpack import Ext, packb

from .codec import Codec, Label
from .containers import MAP, flat
from .errors import EncodeError, Refusal, type_name
from .registry import codec_of
from .wire import ANY_KEYS, MAX_DEPTH, OPTION, sorted_array

_LEAVES: Final = frozenset({type(None), bool, float, bytes})
_PLAIN_KEYS: Final = _LEAVES | {str, int}
_SHOWN: Final = 200


def encode_carefully(value: object, path: str) -> bytes:
    """What `encode` does, for values that have keys of any type, or that are refused.

    Raises:
        EncodeError: The value is refused.
    """
    try:
        return _pack(_Walk().value(value, path))
    except (RecursionError, _TooDeepError):
        raise EncodeError(
            f"{path} is nested too deeply to be recorded (up to {MAX_DEPTH} levels of objects and tuples, "
            "and 255 of lists and dicts): make it a flat list of parts that refer to each other by id",
            path=path,
            type_name=type_name(type(value)),
        ) from None


class _TooDeepError(Exception):
    """More levels than can be read back."""


def _pack(content: object) -> bytes:
    try:
        return packb(content, None, OPTION | ANY_KEYS)
    except TypeError as error:
        raise _TooDeepError from error


class _Walk:
    """Turns a value into one that the library can write alone."""

    def __init__(self) -> None:
        self.inside: set[int] = set()
        self.depth = 0

    def value(self, value: Any, path: str) -> object:
        cls = type(cast("object", value))
        if cls in _LEAVES:
            return value
        if cls is str:
            if not _is_unicode(value):
                raise _refused(
                    value,
                    path,
                    Refusal(
                        "it has lone surrogates, which UTF-8 has no bytes for",
                        "encode it yourself: text.encode('utf-8', 'surrogateescape')",
                    ),
                )
            return value
        if cls is int and -(1 << 63) <= value < 1 << 64:
            return value
        if id(value) in self.inside:
            raise _refused(
                value,
                path,
                Refusal("it contains itself", "record the parts, and ids of those they refer to"),
            )
        self.inside.add(id(value))
        try:
            return self.compound(value, cls, path)
        finally:
            self.inside.discard(id(value))

    def compound(self, value: Any, cls: type[Any], path: str) -> object:
        if cls is list:
            if _LEAVES.issuperset(map(type, value)):
                return value
            return [self.value(item, f"{path}[{i}]") for i, item in enumerate(value)]
        if cls is dict:
            return self.mapping(value, path)
        try:
            codec = codec_of(cls)
            content = codec.reduce(value)
        except Refusal as refusal:
            raise _refused(value, path, refusal) from refusal.__cause__
        except (EncodeError, RecursionError):
            raise
        except Exception as error:
            reason = f"taking it apart raised {type(error).__name__}: {error}"
            raise _refused(value, path, Refusal(reason, "mend what raised it")) from error
        return self.extension(codec, content, path)

    def mapping(self, value: dict[Any, Any], path: str) -> object:
        kinds = set(map(type, value))
        is_plain = kinds <= _PLAIN_KEYS and (
            int not in kinds or all(-(1 << 63) <= key < 1 << 64 for key in value if type(key) is int)
        )
        if not is_plain:
            return self.extension(MAP, flat(value), path)
        made: dict[Any, object] = {}
        for key, item in value.items():
            made[self.value(key, _key(path, key))] = self.value(item, f"{path}[{_shown(key)}]")
        return made

    def extension(self, codec: Codec, content: Any, path: str) -> Ext:
        if self.depth == MAX_DEPTH:
            raise _TooDeepError
        self.depth += 1
        if codec.raw:
            data = content
        elif codec.sorts:
            data = sorted_array([_pack(part) for part in self.parts(codec, content, path)])
        elif _is_list(content):
            data = _pack(self.parts(codec, content, path))
        else:
            data = _pack(self.value(content, path))
        self.depth -= 1
        return Ext(codec.code, data)

    def parts(self, codec: Codec, content: list[Any], path: str) -> list[object]:
        match codec.label:
            case Label.FIELDS:
                name, fields, *extra = content
                return [
                    name,
                    self.named(fields, path),
                    *(self.sections(each, path) for each in extra),
                ]
            case Label.NODES:
                return [
                    [name, self.named(state, path), self.named(attributes, path), links]
                    for name, state, attributes, links in content
                ]
            case Label.NONE:
                paths = [path] * len(content)
            case Label.ITEMS:
                paths = [f"{path}[{i - codec.offset}]" for i in range(len(content))]
            case Label.PAIRS:
                keys = content[codec.offset :: 2]
                both = [each for key in keys for each in (_key(path, key), f"{path}[{_shown(key)}]")]
                paths = [path] * codec.offset + both
        return [self.value(part, where) for part, where in zip(content, paths, strict=True)]

    def named(self, items: dict[str, Any] | None, path: str) -> dict[str, object] | None:
        if items is None:
            return None
        return {name: self.value(item, f"{path}.{name}") for name, item in items.items()}

    def sections(self, extra: dict[str, Any], path: str) -> dict[str, object]:
        return {
            section: self.named(cast("dict[str, Any]", part), path) if type(part) is dict else part
            for section, part in extra.items()
        }


def _is_list(content: object) -> bool:
    return type(content) is list


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(key: object) -> str:
    try:
        text = repr(key)
    except Exception:
        text = f"<{type_name(type(key))}>"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _key(path: str, key: object) -> str:
    return f"key {_shown(key)} of {path}"


def _refused(value: object, path: str, refusal: Refusal) -> EncodeError:
    name = type_name(type(value))
    message = f"{path} cannot be recorded: it is a {name}, and {refusal.reason}; {refusal.advice}"
    return EncodeError(message, path=path, type_name=name)
