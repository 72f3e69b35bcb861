"""`encode_carefully`: a slow encoder, which tracks the position in the value for error messages."""

from typing import Any, Final, cast

from ormsgpack import Ext, packb

from .codec import Codec, Label
from .codecs.containers import MAP, flatten_pairs
from .errors import EncodeError, NotRecordable, type_name
from .msgpack_options import ANY_KEYS, MAX_DEPTH, PACK_OPTIONS, sorted_array
from .registry import codec_of

_LEAF_TYPES: Final = frozenset({type(None), bool, float, bytes})
_PLAIN_KEY_TYPES: Final = _LEAF_TYPES | {str, int}
_MAX_KEY_CHARS: Final = 200


def encode_carefully(value: object, path: str) -> bytes:
    """Encodes a value that the fast encoder cannot encode: the value has dict keys of other types than str,
    contains a bytearray, or cannot be recorded.

    Raises:
        EncodeError: The value cannot be recorded.
    """
    try:
        return _pack(_CarefulEncoder().encode_value(value, path))
    except (RecursionError, _TooDeepError):
        raise EncodeError(
            f"{path} is nested too deeply to be recorded (up to {MAX_DEPTH} levels of objects and tuples, "
            "and 255 of lists and dicts): make it a flat list of parts that refer to each other by id",
            path=path,
            type_name=type_name(type(value)),
        ) from None


class _TooDeepError(Exception):
    """The value has more levels than the decoder can read."""


def _pack(content: object) -> bytes:
    try:
        return packb(content, None, PACK_OPTIONS | ANY_KEYS)
    except TypeError as error:
        raise _TooDeepError from error


class _CarefulEncoder:
    """A converter of a value to one that the MessagePack library can write by itself."""

    def __init__(self) -> None:
        self.ancestors: set[int] = set()
        self.depth = 0

    def encode_value(self, value: Any, path: str) -> object:
        cls = type(cast("object", value))
        if cls in _LEAF_TYPES:
            return value
        if cls is str:
            if not _is_unicode(value):
                raise _encode_error(
                    value,
                    path,
                    NotRecordable(
                        "it has lone surrogates, which UTF-8 cannot encode",
                        "encode it yourself: text.encode('utf-8', 'surrogateescape')",
                    ),
                )
            return value
        if cls is int and -(1 << 63) <= value < 1 << 64:
            return value
        if id(value) in self.ancestors:
            raise _encode_error(
                value,
                path,
                NotRecordable("it contains itself", "record the parts, which refer to each other by id"),
            )
        self.ancestors.add(id(value))
        try:
            return self.encode_compound(value, cls, path)
        finally:
            self.ancestors.discard(id(value))

    def encode_compound(self, value: Any, cls: type[Any], path: str) -> object:
        if cls is list:
            if _LEAF_TYPES.issuperset(map(type, value)):
                return value
            return [self.encode_value(item, f"{path}[{i}]") for i, item in enumerate(value)]
        if cls is dict:
            return self.encode_mapping(value, path)
        try:
            codec = codec_of(cls)
            content = codec.reduce(value)
        except NotRecordable as not_recordable:
            raise _encode_error(value, path, not_recordable) from not_recordable.__cause__
        except (EncodeError, RecursionError):
            raise
        except Exception as error:
            reason = f"taking it apart raised {type(error).__name__}: {error}"
            raise _encode_error(value, path, NotRecordable(reason, "fix the code that raised it")) from error
        return self.encode_extension(codec, content, path)

    def encode_mapping(self, value: dict[Any, Any], path: str) -> object:
        key_types = set(map(type, value))
        is_plain = key_types <= _PLAIN_KEY_TYPES and (
            int not in key_types or all(-(1 << 63) <= key < 1 << 64 for key in value if type(key) is int)
        )
        if not is_plain:
            return self.encode_extension(MAP, flatten_pairs(value), path)
        made: dict[Any, object] = {}
        for key, item in value.items():
            made[self.encode_value(key, _key_path(path, key))] = self.encode_value(
                item, f"{path}[{_key_repr(key)}]"
            )
        return made

    def encode_extension(self, codec: Codec, content: Any, path: str) -> Ext:
        if self.depth == MAX_DEPTH:
            raise _TooDeepError
        self.depth += 1
        if codec.is_raw:
            data = content
        elif codec.is_unordered:
            data = sorted_array([_pack(part) for part in self.encode_parts(codec, content, path)])
        elif _is_list(content):
            data = _pack(self.encode_parts(codec, content, path))
        else:
            data = _pack(self.encode_value(content, path))
        self.depth -= 1
        return Ext(codec.code, data)

    def encode_parts(self, codec: Codec, content: list[Any], path: str) -> list[object]:
        match codec.label:
            case Label.FIELDS:
                name, fields, *extra = content
                return [
                    name,
                    self.encode_named(fields, path),
                    *(self.encode_sections(each, path) for each in extra),
                ]
            case Label.NODES:
                return [
                    [name, self.encode_named(state, path), self.encode_named(attributes, path), links]
                    for name, state, attributes, links in content
                ]
            case Label.NONE:
                paths = [path] * len(content)
            case Label.ITEMS:
                paths = [f"{path}[{i - codec.offset}]" for i in range(len(content))]
            case Label.PAIRS:
                keys = content[codec.offset :: 2]
                both = [each for key in keys for each in (_key_path(path, key), f"{path}[{_key_repr(key)}]")]
                paths = [path] * codec.offset + both
        return [self.encode_value(part, part_path) for part, part_path in zip(content, paths, strict=True)]

    def encode_named(self, items: dict[str, Any] | None, path: str) -> dict[str, object] | None:
        if items is None:
            return None
        return {name: self.encode_value(item, f"{path}.{name}") for name, item in items.items()}

    def encode_sections(self, extra: dict[str, Any], path: str) -> dict[str, object]:
        return {
            section: self.encode_named(cast("dict[str, Any]", part), path) if type(part) is dict else part
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


def _key_repr(key: object) -> str:
    try:
        text = repr(key)
    except Exception:
        text = f"<{type_name(type(key))}>"
    return text if len(text) <= _MAX_KEY_CHARS else f"{text[:_MAX_KEY_CHARS]}…"


def _key_path(path: str, key: object) -> str:
    return f"key {_key_repr(key)} of {path}"


def _encode_error(value: object, path: str, not_recordable: NotRecordable) -> EncodeError:
    name = type_name(type(value))
    message = (
        f"{path} cannot be recorded: its type is {name}, and {not_recordable.reason}; {not_recordable.advice}"
    )
    return EncodeError(message, path=path, type_name=name)
