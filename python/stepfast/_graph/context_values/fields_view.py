"""Views of a context as an object of its class."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, Final

from stepfast._graph.context_values.fields import NO_DEFAULT, ContextFields

if TYPE_CHECKING:
    from stepfast._graph.context_values.context import Context

# names that no field has
_CONTEXT: Final = "__stepfast_context__"
_FIELDS: Final = "__stepfast_fields__"


class AttributeView:
    """The fields of a context as attributes: those that tasks have written, and defaults of others.

    Args:
        context: The context.
        fields: The fields of its class.
    """

    __slots__ = (_CONTEXT, _FIELDS)

    def __init__(self, context: Context[Any], fields: ContextFields) -> None:
        object.__setattr__(self, _CONTEXT, context)
        object.__setattr__(self, _FIELDS, fields)

    def __getattr__(self, name: str) -> Any:
        fields: ContextFields = object.__getattribute__(self, _FIELDS)
        if name not in fields.names:
            raise AttributeError(f"{name!r} is {fields.describe_unknown(name)}")
        context = _context_of(self)
        if name in context:
            return context[name]
        value = fields.default(name, self, context.to_dict)
        if value is NO_DEFAULT:
            raise AttributeError(
                f"the context has no key {name!r}, and the field {fields.name}.{name} has no default"
            )
        return value

    def __setattr__(self, name: str, value: object) -> None:
        _context_of(self).set(name, value)

    def __delattr__(self, name: str) -> None:
        _context_of(self).remove(name)

    def __dir__(self) -> list[str]:
        fields: ContextFields = object.__getattribute__(self, _FIELDS)
        return fields.names

    def __repr__(self) -> str:
        return f"<fields of {_context_of(self)!r}>"


class ItemView(MutableMapping[str, Any]):
    """The fields of a context as items, for a TypedDict.

    Args:
        context: The context.
    """

    def __init__(self, context: Context[Any]) -> None:
        self._context = context

    def __getitem__(self, key: str) -> Any:
        return self._context[key]

    def __setitem__(self, key: str, value: object) -> None:
        self._context.set(key, value)

    def __delitem__(self, key: str) -> None:
        self._context.remove(key)

    def __contains__(self, key: object) -> bool:
        return key in self._context

    def __iter__(self) -> Iterator[str]:
        return iter(self._context)

    def __len__(self) -> int:
        return len(self._context)

    def __repr__(self) -> str:
        return f"<fields of {self._context!r}>"


def _context_of(view: AttributeView) -> Context[Any]:
    context: Context[Any] = object.__getattribute__(view, _CONTEXT)
    return context


__all__ = ["AttributeView", "ItemView"]
