"""Objects made of fields: dataclasses, attrs classes, msgspec structs, pydantic models, named tuples."""

import contextlib
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable
from types import MemberDescriptorType
from typing import Any, Final

from . import codes
from .codec import Codec, Label, Names, derives
from .errors import DecodeError, Refusal, type_name
from .references import name_of

# What a class may have beside fields, by section: attributes that are no fields, fields without a value,
# and pydantic's private attributes, extra fields and names of fields that were set.
Extra = dict[str, Any]

_new_tuple: Final[Any] = vars(tuple)["__new__"]
# without asking a __getattr__, which may compute what is not there
_get: Final = object.__getattribute__
_UPGRADE: Final = "__stepfast_upgrade__"
_IGNORED: Final = frozenset({"__orig_class__", "__weakref__", "_attrs_cached_hash"})


class Shape:
    """Takes the instances of one class apart, and makes them without their constructor.

    The constructor is not called, as it may check, compute or count what was done when the value was
    made: what comes back is the state that was recorded.

    Attributes:
        cls: The class.
        names: Names of the fields.
        defaults: Gives the value of a field that was not recorded, if there is one.
    """

    def __init__(self, cls: type, names: list[str], defaults: dict[str, Callable[[Any], object]]) -> None:
        self.cls: Any = cls
        self.names = names
        self.known: frozenset[str] = frozenset(names)
        self.upgrade: Callable[[dict[str, Any]], dict[str, Any]] | None = getattr(cls, _UPGRADE, None)
        self.defaults = defaults
        members = [
            name
            for base in cls.__mro__
            for name, member in vars(base).items()
            if type(member) is MemberDescriptorType
        ]
        self.slots: list[str] = [name for name in members if name not in self.known | _IGNORED]
        self.computed: set[str] = {
            name
            for base in cls.__mro__
            for name, member in vars(base).items()
            if isinstance(member, functools.cached_property)
        }
        self.has_dict: bool = bool(cls.__dictoffset__)
        self.is_direct: bool = self.has_dict and not any(
            _is_setter(inspect.getattr_static(cls, name, None)) for name in names
        )
        self.hides_hash: bool = "_attrs_cached_hash" in members

    def take(self, value: Any) -> tuple[dict[str, Any], Extra]:
        """The fields that have a value, in the order of the class, and what else there is."""
        state: dict[str, Any] = value.__dict__ if self.has_dict else {}
        try:
            if self.is_direct:
                if len(state) == len(self.names) and not self.slots:
                    return {name: state[name] for name in self.names}, {}
            elif not state and not self.slots:
                return {name: _get(value, name) for name in self.names}, {}
        except (KeyError, AttributeError):
            pass
        fields: dict[str, Any] = {}
        extra = self.beside(value)
        for name in self.names:
            try:
                fields[name] = _get(value, name)
            except AttributeError:
                extra.setdefault("unset", []).append(name)
        return fields, extra

    def beside(self, value: Any) -> Extra:
        """What is in the instance and is no field."""
        attributes: dict[str, Any] = {}
        for name in self.slots:
            with contextlib.suppress(AttributeError):
                attributes[name] = _get(value, name)
        for name, item in value.__dict__.items() if self.has_dict else ():
            if name not in self.known and name not in self.computed and name not in _IGNORED:
                attributes[name] = item
        return {"attributes": attributes} if attributes else {}

    def make(self, fields: dict[str, Any], extra: Extra) -> object:
        """An object of these fields; those that are missing have a default."""
        made = object.__new__(self.cls)
        if self.is_direct:
            made.__dict__.update(fields)
        else:
            for name, item in fields.items():
                object.__setattr__(made, name, item)
        if self.hides_hash:
            object.__setattr__(made, "_attrs_cached_hash", None)
        if extra or len(fields) != len(self.names):
            for name in self.missing(fields, extra):
                object.__setattr__(made, name, self.defaults[name](made))
            self.restore(made, extra)
        return made

    def missing(self, fields: dict[str, Any], extra: Extra) -> list[str]:
        """Fields that have to get their default."""
        unset = extra.get("unset", ())
        return [name for name in self.names if name not in fields and name not in unset]

    def restore(self, made: object, extra: Extra) -> None:
        """Puts back what is no field."""
        for name, item in extra.get("attributes", {}).items():
            if name in self.slots:
                object.__setattr__(made, name, item)
            else:
                made.__dict__[name] = item


def _is_setter(attribute: object) -> bool:
    return hasattr(attribute.__class__, "__set__")


class NamedTupleShape(Shape):
    """A tuple whose items have names."""

    def __init__(self, cls: Any) -> None:
        defaults = {name: _constant(item) for name, item in cls._field_defaults.items()}
        super().__init__(cls, list(cls._fields), defaults)

    def take(self, value: Any) -> tuple[dict[str, Any], Extra]:
        return dict(zip(self.names, value, strict=True)), self.beside(value)

    def make(self, fields: dict[str, Any], extra: Extra) -> object:
        items = (fields[name] if name in fields else self.defaults[name](None) for name in self.names)
        made = _new_tuple(self.cls, items)
        self.restore(made, extra)
        return made


class StructShape(Shape):
    """A msgspec struct. Only its constructor makes one; it checks nothing and fills in defaults."""

    def __init__(self, cls: Any) -> None:
        structs = sys.modules["msgspec"].structs
        optional = [field.name for field in structs.fields(cls) if not field.required]
        super().__init__(cls, list(cls.__struct_fields__), dict.fromkeys(optional, _constant(None)))
        self.slots: list[str] = []
        self.force: Callable[[Any, str, Any], None] = structs.force_setattr
        self.has_post_init: bool = hasattr(cls, "__post_init__")

    def make(self, fields: dict[str, Any], extra: Extra) -> object:
        made = self.cls(**fields)
        if self.has_post_init:
            for name, item in fields.items():
                self.force(made, name, item)
        self.restore(made, extra)
        return made


class ModelShape(Shape):
    """A pydantic model."""

    def __init__(self, cls: Any) -> None:
        infos = cls.model_fields
        defaults = {name: _model_default(info) for name, info in infos.items() if not info.is_required()}
        super().__init__(cls, list(infos), defaults)
        self.is_direct = True
        self.slots: list[str] = []
        # a RootModel has neither, and the class says so
        static = inspect.getattr_static(cls, "__pydantic_extra__")
        self.has_more: bool = isinstance(static, MemberDescriptorType)
        self.privates: dict[str, Any] = cls.__private_attributes__

    def take(self, value: Any) -> tuple[dict[str, Any], Extra]:
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
            extra.update(self.beside(value))
        return fields, extra

    def make(self, fields: dict[str, Any], extra: Extra) -> object:
        made = object.__new__(self.cls)
        state = dict(fields)
        for name in self.missing(fields, extra):
            state[name] = self.defaults[name](state)
        privates = extra.get("private")
        if self.privates:
            privates = dict(privates or {})
            for name, private in self.privates.items():
                if name not in privates and (item := private.get_default()) is not _undefined():
                    privates[name] = item
        object.__setattr__(made, "__dict__", state)
        object.__setattr__(made, "__pydantic_fields_set__", set(extra.get("set", fields)))
        if self.has_more:
            object.__setattr__(made, "__pydantic_extra__", extra.get("extra"))
            object.__setattr__(made, "__pydantic_private__", privates)
        state.update(extra.get("attributes", {}))
        return made


def _undefined() -> object:
    return sys.modules["pydantic_core"].PydanticUndefined


def _model_default(info: Any) -> Callable[[Any], object]:
    if info.default_factory is None:
        return lambda _: info.get_default()
    if info.default_factory_takes_validated_data:
        return lambda state: info.default_factory(state)
    return lambda _: info.default_factory()


def _constant(value: object) -> Callable[[Any], object]:
    return lambda _: value


def _dataclass(cls: Any) -> Shape:
    defaults: dict[str, Callable[[Any], object]] = {}
    fields = dataclasses.fields(cls)
    for field in fields:
        if field.default is not dataclasses.MISSING:
            defaults[field.name] = _constant(field.default)
        elif (factory := field.default_factory) is not dataclasses.MISSING:
            defaults[field.name] = functools.partial(_call, factory)
    return Shape(cls, [field.name for field in fields], defaults)


def _call(factory: Callable[[], object], _: object) -> object:
    return factory()


def _attrs(cls: Any) -> Shape:
    attr: Any = sys.modules["attr"]
    defaults: dict[str, Callable[[Any], object]] = {}
    for field in cls.__attrs_attrs__:
        default = field.default
        if isinstance(default, attr.Factory):
            takes = default.takes_self
            defaults[field.name] = default.factory if takes else functools.partial(_call, default.factory)
        elif default is not attr.NOTHING:
            defaults[field.name] = _constant(default)
    return Shape(cls, [field.name for field in cls.__attrs_attrs__], defaults)


def _maker(cls: type) -> Callable[[type], Shape] | None:
    if is_subclass_of(cls, "pydantic", "BaseModel"):
        return ModelShape
    if hasattr(cls, "__attrs_attrs__"):
        return _attrs
    return _dataclass if dataclasses.is_dataclass(cls) else None


_shapes: Final[dict[type, Shape]] = {}


def shape_of(cls: Any) -> Shape | None:
    """How objects of this class are taken apart; None if it is not made of fields.

    Raises:
        Refusal: Its objects cannot be made again.
    """
    if (known := _shapes.get(cls)) is not None:
        return known
    if is_subclass_of(cls, "msgspec", "Struct"):
        shape: Shape = StructShape(cls)
    elif hasattr(cls, "_field_defaults") and derives(cls, tuple):
        shape = NamedTupleShape(cls)
    elif (take_apart := _maker(cls)) is None:
        return None
    elif any("__new__" in vars(base) for base in cls.__mro__[:-1]):
        raise Refusal(f"class {cls.__qualname__} makes its instances itself, in __new__")
    else:
        shape = take_apart(cls)
    _shapes[cls] = shape
    return shape


def is_subclass_of(cls: type, module: str, name: str) -> bool:
    """Whether a class derives from one of a library that may not be here; it is not imported."""
    base = getattr(sys.modules.get(module), name, None)
    return base is not None and issubclass(cls, base)


def object_codec(cls: type, shape: Shape) -> Codec:
    """The codec of a class that is made of fields."""
    name = name_of(cls)
    take = shape.take

    def reduce(value: object) -> list[Any]:
        fields, extra = take(value)
        return [name, fields, extra] if extra else [name, fields]

    return Codec(codes.OBJECT, reduce, Label.FIELDS)


def read_object(content: list[Any], names: Names) -> object:
    """The object; fields that were added since it was recorded get their defaults.

    Raises:
        DecodeError: The class has no longer a field that was recorded, or has a new one without
            default, or is not made of fields any more.
    """
    cls = names.find(content[0])
    fields: dict[str, Any] = content[1]
    extra: Extra = content[2] if len(content) > 2 else {}
    shape = _shapes.get(cls) or _shape_now(cls)
    if shape.upgrade is not None:
        fields = shape.upgrade(fields)
    if fields.keys() != shape.known:
        _check(shape, fields, extra)
    return shape.make(fields, extra)


def _shape_now(cls: type) -> Shape:
    try:
        shape = shape_of(cls)
    except Refusal as refusal:
        raise DecodeError(f"{refusal.reason}; {refusal.advice}") from refusal
    if shape is None:
        raise DecodeError(
            f"class {type_name(cls)} has no fields any more, but had some when a value was recorded: "
            "register a codec for it with stepfast.values.register"
        )
    return shape


def _check(shape: Shape, fields: dict[str, Any], extra: Extra) -> None:
    for name in fields:
        if name not in shape.known:
            raise DecodeError(
                f"a {type_name(shape.cls)} was recorded with the field {name}, which the class has not "
                f"(any more): keep the field, or say in a classmethod {_UPGRADE}(cls, fields) which "
                "fields the recorded ones become"
            )
    for name in shape.missing(fields, extra):
        if name not in shape.defaults:
            raise DecodeError(
                f"a {type_name(shape.cls)} was recorded without the field {name}, which has no default: "
                f"give it one, or add it in a classmethod {_UPGRADE}(cls, fields)"
            )
