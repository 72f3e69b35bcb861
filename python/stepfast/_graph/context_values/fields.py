"""`ContextFields`: the fields of a class, which are the keys of a context."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from stepfast._graph.annotation_types import accepts, evaluate
from stepfast._validation.text import short_repr
from stepfast._values.codecs.objects import is_subclass_of, shape_of
from stepfast._values.errors import NotRecordable
from stepfast.errors import InvalidArgument

#: The value of a field without a default.
NO_DEFAULT: Final = object()

#: Returns the default of a field. The argument is an object with the fields, or a dict for pydantic.
_Default = Callable[[Any], object]


class ContextFields:
    """The fields of a class, which are the keys of a context: their types, and their defaults.

    Attributes:
        name: The name of the class.
        names: The names of the fields, in the order of the class.
        has_items: Whether the class is a TypedDict, whose fields are items instead of attributes.
    """

    def __init__(self, cls: Any, names: list[str], defaults: dict[str, _Default], has_items: bool) -> None:
        self.name: str = cls.__name__
        self.names: list[str] = names
        self.has_items: bool = has_items
        self._defaults = defaults
        self._types = _field_types(cls)

    def check_key(self, key: str, place: str) -> None:
        """Checks that a key is a field.

        Args:
            key: The key.
            place: The place of the key, for the error message: " of task 'load'", or an empty text.

        Raises:
            InvalidArgument: The key is no field.
        """
        if key not in self.names:
            raise InvalidArgument(f"the context key {key!r}{place} is {self.describe_unknown(key)}")

    def describe_unknown(self, key: str) -> str:
        """Returns the part of an error message that says that the class has no such field."""
        nearest = difflib.get_close_matches(str(key), self.names, n=1)
        if nearest:
            return f"no field of {self.name}; did you mean {nearest[0]!r}?"
        names = ", ".join(map(repr, self.names)) or "none"
        return f"no field of {self.name}, whose fields are: {names}"

    def checked(self, key: str, value: object, values: Mapping[str, Any], place: str) -> Any:
        """Returns the value of a key, as the class takes it.

        Args:
            key: The key.
            value: The value.
            values: The values of the context by key.
            place: See `check_key`.

        Raises:
            InvalidArgument: The key is no field, or the field rejects the value.
        """
        self.check_key(key, place)
        return self._taken(key, value, values, place)

    def _taken(self, key: str, value: object, values: Mapping[str, Any], place: str) -> Any:
        """Returns the value of a field, as the class takes it."""
        given = self._types.get(key, Any)
        if not accepts(given, value):
            raise InvalidArgument(
                f"the context key {key!r}{place} is {short_repr(value)}, and must be "
                f"{inspect.formatannotation(given)}, like the field {self.name}.{key}"
            )
        return value

    def default(self, key: str, view: object, values: Callable[[], dict[str, Any]]) -> object:
        """Returns the default of a field; `NO_DEFAULT` if it has none.

        Args:
            key: The name of the field.
            view: The fields of the context, for defaults that depend on other fields.
            values: Returns the values of the context by key, for the same purpose.
        """
        return self._defaults[key](view) if key in self._defaults else NO_DEFAULT


class _ModelFields(ContextFields):
    """The fields of a pydantic model, which validates the values. The validators of the whole model do not
    run, because the context need not have all keys."""

    def __init__(self, cls: Any, names: list[str], defaults: dict[str, _Default]) -> None:
        super().__init__(cls, names, defaults, False)
        # a class that names later classes is complete at its first use only
        cls.model_rebuild()
        self._validator = _field_validator(cls.__pydantic_core_schema__)

    def _taken(self, key: str, value: object, values: Mapping[str, Any], place: str) -> Any:
        try:
            fields, *_ = self._validator.validate_assignment(dict(values), key, value)
        except sys.modules["pydantic_core"].ValidationError as error:
            reasons = "; ".join(_describe_error(each) for each in error.errors(include_url=False))
            raise InvalidArgument(
                f"the context key {key!r}{place} is {short_repr(value)}, which the field {self.name}.{key} "
                f"rejects: {reasons}"
            ) from error
        return fields[key]

    def default(self, key: str, view: object, values: Callable[[], dict[str, Any]]) -> object:
        return super().default(key, values(), values)


def fields_of(cls: Any) -> ContextFields:
    """Returns the fields of a class.

    Raises:
        InvalidArgument: The value is no class with fields.
    """
    origin: Any = typing.get_origin(cls) or cls
    if typing.is_typeddict(origin):
        return ContextFields(origin, sorted(origin.__required_keys__ | origin.__optional_keys__), {}, True)
    try:
        shape = shape_of(origin) if isinstance(origin, type) and not _is_root_model(origin) else None
    except NotRecordable as error:
        raise InvalidArgument(
            f"{short_repr(cls)} cannot be the class of a context: {error.reason}"
        ) from error
    if shape is None:
        raise InvalidArgument(
            f"{short_repr(cls)} cannot be the class of a context: give a dataclass, a pydantic model, an "
            "attrs or msgspec class, or a TypedDict"
        )
    if is_subclass_of(origin, "pydantic", "BaseModel"):
        return _ModelFields(origin, shape.names, shape.defaults)
    is_struct = is_subclass_of(origin, "msgspec", "Struct")
    defaults = _struct_defaults(origin) if is_struct else shape.defaults
    return ContextFields(origin, shape.names, defaults, False)


def _is_root_model(cls: type) -> bool:
    """Returns whether a pydantic model stands for one value, and has no fields."""
    return is_subclass_of(cls, "pydantic", "RootModel")


def _field_types(cls: Any) -> dict[str, Any]:
    """Returns the types of the fields by name: `Any` for a type that cannot be evaluated."""
    try:
        return typing.get_type_hints(cls)
    except Exception:
        # names that only type checkers import, or local ones: the other fields keep their types
        return dict(_evaluated_annotations(cls))


def _evaluated_annotations(cls: type) -> Iterator[tuple[str, Any]]:
    for base in reversed(cls.__mro__):
        namespace = vars(sys.modules.get(base.__module__, typing))
        with contextlib.suppress(NameError):
            for name, annotation in inspect.get_annotations(base).items():
                yield name, evaluate(annotation, namespace)


def _struct_defaults(cls: Any) -> dict[str, _Default]:
    msgspec: Any = sys.modules["msgspec"]
    defaults: dict[str, _Default] = {}
    for field in msgspec.structs.fields(cls):
        if field.default is not msgspec.NODEFAULT:
            defaults[field.name] = functools.partial(_constant, field.default)
        elif field.default_factory is not msgspec.NODEFAULT:
            defaults[field.name] = functools.partial(_call_factory, field.default_factory)
    return defaults


def _constant(value: object, _: object) -> object:
    return value


def _call_factory(factory: Callable[[], object], _: object) -> object:
    return factory()


def _field_validator(schema: Any) -> Any:
    """Returns the validator of the fields of a pydantic model, without the validators of the whole model.

    Args:
        schema: The core schema of the model.
    """
    definitions: list[Any] = []
    config: Any = None
    while schema["type"] != "model-fields":
        if schema["type"] == "definitions":
            definitions = schema["definitions"]
        config = schema.get("config") or config
        if schema["type"] == "definition-ref":
            schema = next(each for each in definitions if each["ref"] == schema["schema_ref"])
        else:
            schema = schema["schema"]
    fields = {name: {**field, "frozen": False} for name, field in schema["fields"].items()}
    schema = {**schema, "fields": fields}
    if definitions:
        schema = {"type": "definitions", "schema": schema, "definitions": definitions}
    return sys.modules["pydantic_core"].SchemaValidator(schema, config)


def _describe_error(error: dict[str, Any]) -> str:
    """Returns the message of an error of pydantic, with the position of the wrong part of the value."""
    position = "".join(f"[{each!r}]" for each in error["loc"][1:])
    return f"{error['msg']} at {position}" if position else str(error["msg"])


__all__ = ["NO_DEFAULT", "ContextFields", "fields_of"]
