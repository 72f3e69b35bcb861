"""Codecs of objects with fields: dataclasses, attrs classes, msgspec structs, pydantic models, named
tuples."""

import contextlib
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable
from types import MemberDescriptorType
from typing import Any, Final

from .. import codes
from ..codec import ClassFinder, Codec, Label, derives_from
from ..errors import DecodeError, NotRecordable, type_name
from ..references import name_of

# The state of an instance besides its fields, by the name of a section. The sections are attributes that are
# no fields, fields without a value, and, for pydantic, private attributes, extra fields and names of fields
# that were set.
Extra = dict[str, Any]

_new_tuple: Final[Any] = vars(tuple)["__new__"]
# reads an attribute without calling a `__getattr__`, which may compute missing attributes
_get_attribute: Final = object.__getattribute__
_UPGRADE_METHOD: Final = "__stepfast_upgrade__"
_IGNORED_ATTRIBUTES: Final = frozenset({"__orig_class__", "__weakref__", "_attrs_cached_hash"})


class Shape:
    """A description of one class with fields. It takes instances apart, and rebuilds them without their
    constructor.

    A constructor may check, compute or count, and has done so when the original instance was created. The
    rebuilt instance has the recorded state.

    Attributes:
        cls: The class.
        names: The names of the fields, in the order of the class.
        defaults: Functions that return the value of a field that was not recorded, by the name of the field.
    """

    def __init__(self, cls: type, names: list[str], defaults: dict[str, Callable[[Any], object]]) -> None:
        self.cls: Any = cls
        self.names = names
        self.field_names: frozenset[str] = frozenset(names)
        self.upgrade: Callable[[dict[str, Any]], dict[str, Any]] | None = getattr(cls, _UPGRADE_METHOD, None)
        self.defaults = defaults
        members = [
            name
            for base in cls.__mro__
            for name, member in vars(base).items()
            if type(member) is MemberDescriptorType
        ]
        self.slots: list[str] = [
            name for name in members if name not in self.field_names | _IGNORED_ATTRIBUTES
        ]
        self.cached_properties: set[str] = {
            name
            for base in cls.__mro__
            for name, member in vars(base).items()
            if isinstance(member, functools.cached_property)
        }
        self.has_dict: bool = bool(cls.__dictoffset__)
        self.is_direct: bool = self.has_dict and not any(
            _has_setter(inspect.getattr_static(cls, name, None)) for name in names
        )
        self.has_cached_hash: bool = "_attrs_cached_hash" in members

    def split(self, value: Any) -> tuple[dict[str, Any], Extra]:
        """Returns the fields that have a value, in the order of the class, and the other state of the
        instance."""
        state: dict[str, Any] = value.__dict__ if self.has_dict else {}
        try:
            if self.is_direct:
                if len(state) == len(self.names) and not self.slots:
                    return {name: state[name] for name in self.names}, {}
            elif not state and not self.slots:
                return {name: _get_attribute(value, name) for name in self.names}, {}
        except (KeyError, AttributeError):
            pass
        fields: dict[str, Any] = {}
        extra = self.extra_attributes(value)
        for name in self.names:
            try:
                fields[name] = _get_attribute(value, name)
            except AttributeError:
                extra.setdefault("unset", []).append(name)
        return fields, extra

    def extra_attributes(self, value: Any) -> Extra:
        """Returns the attributes of the instance that are no fields."""
        attributes: dict[str, Any] = {}
        for name in self.slots:
            with contextlib.suppress(AttributeError):
                attributes[name] = _get_attribute(value, name)
        for name, item in value.__dict__.items() if self.has_dict else ():
            if (
                name not in self.field_names
                and name not in self.cached_properties
                and name not in _IGNORED_ATTRIBUTES
            ):
                attributes[name] = item
        return {"attributes": attributes} if attributes else {}

    def make(self, fields: dict[str, Any], extra: Extra) -> object:
        """Rebuilds an instance from its fields; missing fields get their defaults."""
        made = object.__new__(self.cls)
        if self.is_direct:
            made.__dict__.update(fields)
        else:
            for name, item in fields.items():
                object.__setattr__(made, name, item)
        if self.has_cached_hash:
            object.__setattr__(made, "_attrs_cached_hash", None)
        if extra or len(fields) != len(self.names):
            for name in self.missing_fields(fields, extra):
                object.__setattr__(made, name, self.defaults[name](made))
            self.restore_extra(made, extra)
        return made

    def missing_fields(self, fields: dict[str, Any], extra: Extra) -> list[str]:
        """Returns the names of the fields that have to get their defaults."""
        unset = extra.get("unset", ())
        return [name for name in self.names if name not in fields and name not in unset]

    def restore_extra(self, made: object, extra: Extra) -> None:
        """Restores the attributes that are no fields."""
        for name, item in extra.get("attributes", {}).items():
            if name in self.slots:
                object.__setattr__(made, name, item)
            else:
                made.__dict__[name] = item


def _has_setter(attribute: object) -> bool:
    return hasattr(attribute.__class__, "__set__")


class NamedTupleShape(Shape):
    """The shape of a named tuple."""

    def __init__(self, cls: Any) -> None:
        defaults = {name: _constant(item) for name, item in cls._field_defaults.items()}
        super().__init__(cls, list(cls._fields), defaults)

    def split(self, value: Any) -> tuple[dict[str, Any], Extra]:
        return dict(zip(self.names, value, strict=True)), self.extra_attributes(value)

    def make(self, fields: dict[str, Any], extra: Extra) -> object:
        items = (fields[name] if name in fields else self.defaults[name](None) for name in self.names)
        made = _new_tuple(self.cls, items)
        self.restore_extra(made, extra)
        return made


class StructShape(Shape):
    """The shape of a msgspec struct.

    Only its constructor creates an instance. The constructor checks no values, and fills in defaults.
    """

    def __init__(self, cls: Any) -> None:
        structs = sys.modules["msgspec"].structs
        optional = [field.name for field in structs.fields(cls) if not field.required]
        super().__init__(cls, list(cls.__struct_fields__), dict.fromkeys(optional, _constant(None)))
        self.slots: list[str] = []
        self.force_setattr: Callable[[Any, str, Any], None] = structs.force_setattr
        self.has_post_init: bool = hasattr(cls, "__post_init__")

    def make(self, fields: dict[str, Any], extra: Extra) -> object:
        made = self.cls(**fields)
        if self.has_post_init:
            for name, item in fields.items():
                self.force_setattr(made, name, item)
        self.restore_extra(made, extra)
        return made


class ModelShape(Shape):
    """The shape of a pydantic model."""

    def __init__(self, cls: Any) -> None:
        infos = cls.model_fields
        defaults = {name: _model_default(info) for name, info in infos.items() if not info.is_required()}
        super().__init__(cls, list(infos), defaults)
        self.is_direct = True
        self.slots: list[str] = []
        # a RootModel has no slots for extra and private attributes: its class has None in their place
        static = inspect.getattr_static(cls, "__pydantic_extra__")
        self.has_extra: bool = isinstance(static, MemberDescriptorType)
        self.private_attributes: dict[str, Any] = cls.__private_attributes__

    def split(self, value: Any) -> tuple[dict[str, Any], Extra]:
        state = value.__dict__
        fields = {name: state[name] for name in self.names if name in state}
        extra: Extra = {"set": sorted(value.__pydantic_fields_set__)}
        if len(fields) != len(self.names):
            extra["unset"] = [name for name in self.names if name not in fields]
        if value.__pydantic_extra__ is not None:
            extra["extra"] = dict(value.__pydantic_extra__)
        if value.__pydantic_private__ is not None:
            extra["private"] = dict(value.__pydantic_private__)
        if len(state) > len(fields):
            extra.update(self.extra_attributes(value))
        return fields, extra

    def make(self, fields: dict[str, Any], extra: Extra) -> object:
        made = object.__new__(self.cls)
        state = dict(fields)
        for name in self.missing_fields(fields, extra):
            state[name] = self.defaults[name](state)
        private_attributes = extra.get("private")
        if self.private_attributes:
            private_attributes = dict(private_attributes or {})
            for name, private in self.private_attributes.items():
                if name not in private_attributes and (item := private.get_default()) is not _get_undefined():
                    private_attributes[name] = item
        object.__setattr__(made, "__dict__", state)
        object.__setattr__(made, "__pydantic_fields_set__", set(extra.get("set", fields)))
        if self.has_extra:
            object.__setattr__(made, "__pydantic_extra__", extra.get("extra"))
            object.__setattr__(made, "__pydantic_private__", private_attributes)
        state.update(extra.get("attributes", {}))
        return made


def _get_undefined() -> object:
    return sys.modules["pydantic_core"].PydanticUndefined


def _model_default(info: Any) -> Callable[[Any], object]:
    if info.default_factory is None:
        return lambda _: info.get_default()
    if info.default_factory_takes_validated_data:
        return lambda state: info.default_factory(state)
    return lambda _: info.default_factory()


def _constant(value: object) -> Callable[[Any], object]:
    return lambda _: value


def _dataclass_shape(cls: Any) -> Shape:
    defaults: dict[str, Callable[[Any], object]] = {}
    fields = dataclasses.fields(cls)
    for field in fields:
        if field.default is not dataclasses.MISSING:
            defaults[field.name] = _constant(field.default)
        elif (factory := field.default_factory) is not dataclasses.MISSING:
            defaults[field.name] = functools.partial(_call_factory, factory)
    return Shape(cls, [field.name for field in fields], defaults)


def _call_factory(factory: Callable[[], object], _: object) -> object:
    return factory()


def _attrs_shape(cls: Any) -> Shape:
    attr: Any = sys.modules["attr"]
    defaults: dict[str, Callable[[Any], object]] = {}
    for field in cls.__attrs_attrs__:
        default = field.default
        if isinstance(default, attr.Factory):
            takes = default.takes_self
            defaults[field.name] = (
                default.factory if takes else functools.partial(_call_factory, default.factory)
            )
        elif default is not attr.NOTHING:
            defaults[field.name] = _constant(default)
    return Shape(cls, [field.name for field in cls.__attrs_attrs__], defaults)


def _shape_maker(cls: type) -> Callable[[type], Shape] | None:
    if is_subclass_of(cls, "pydantic", "BaseModel"):
        return ModelShape
    if hasattr(cls, "__attrs_attrs__"):
        return _attrs_shape
    return _dataclass_shape if dataclasses.is_dataclass(cls) else None


_shapes: Final[dict[type, Shape]] = {}


def shape_of(cls: Any) -> Shape | None:
    """Returns the shape of a class; None if the class has no fields.

    Raises:
        NotRecordable: Instances of the class could not be rebuilt.
    """
    if (cached := _shapes.get(cls)) is not None:
        return cached
    if is_subclass_of(cls, "msgspec", "Struct"):
        shape: Shape = StructShape(cls)
    elif hasattr(cls, "_field_defaults") and derives_from(cls, tuple):
        shape = NamedTupleShape(cls)
    elif (shape_maker := _shape_maker(cls)) is None:
        return None
    elif any("__new__" in vars(base) for base in cls.__mro__[:-1]):
        raise NotRecordable(f"class {cls.__qualname__} makes its instances itself, in __new__")
    else:
        shape = shape_maker(cls)
    _shapes[cls] = shape
    return shape


def is_subclass_of(cls: type, module: str, name: str) -> bool:
    """Returns whether a class derives from the class `name` of the module `module`. The module belongs
    to an optional library, and is not imported for the check."""
    base = getattr(sys.modules.get(module), name, None)
    return base is not None and issubclass(cls, base)


def object_codec(cls: type, shape: Shape) -> Codec:
    """Returns the codec of a class with fields."""
    name = name_of(cls)
    split = shape.split

    def reduce(value: object) -> list[Any]:
        fields, extra = split(value)
        return [name, fields, extra] if extra else [name, fields]

    return Codec(codes.OBJECT, reduce, Label.FIELDS)


def read_object(content: list[Any], finder: ClassFinder) -> object:
    """Rebuilds an object. Fields that were added to the class after the object was recorded get their
    defaults.

    Raises:
        DecodeError: The class no longer has a recorded field, has a new field without a default, or has no
            fields any more.
    """
    cls = finder.find(content[0])
    fields: dict[str, Any] = content[1]
    extra: Extra = content[2] if len(content) > 2 else {}
    shape = _shapes.get(cls) or _current_shape(cls)
    if shape.upgrade is not None:
        fields = shape.upgrade(fields)
    if fields.keys() != shape.field_names:
        _check_fields(shape, fields, extra)
    return shape.make(fields, extra)


def _current_shape(cls: type) -> Shape:
    try:
        shape = shape_of(cls)
    except NotRecordable as not_recordable:
        raise DecodeError(f"{not_recordable.reason}; {not_recordable.advice}") from not_recordable
    if shape is None:
        raise DecodeError(
            f"class {type_name(cls)} has no fields any more, but had some when a value was recorded: "
            "register a codec for it with stepfast.values.register"
        )
    return shape


def _check_fields(shape: Shape, fields: dict[str, Any], extra: Extra) -> None:
    for name in fields:
        if name not in shape.field_names:
            raise DecodeError(
                f"a {type_name(shape.cls)} was recorded with the field {name}, which the class does not "
                f"have (any more): keep the field, or say in a classmethod {_UPGRADE_METHOD}(cls, fields) "
                "which fields the recorded ones become"
            )
    for name in shape.missing_fields(fields, extra):
        if name not in shape.defaults:
            raise DecodeError(
                f"a {type_name(shape.cls)} was recorded without the field {name}, which has no default: "
                f"give it one, or add it in a classmethod {_UPGRADE_METHOD}(cls, fields)"
            )
