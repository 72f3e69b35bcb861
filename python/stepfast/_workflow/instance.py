"""Configured instances: objects that workflows are methods of, found again by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

from stepfast._validation.text import short_repr
from stepfast._values import DecodeError, register
from stepfast.errors import InvalidArgument

_instances: Final[dict[tuple[type, str], Instance]] = {}


class Instance:
    """Base of classes whose instances hold what a program is configured with: clients, pools, addresses. Such
    an object is recorded by its name alone, so that a workflow can be a method of it, or take it as an
    argument; after a crash the program makes it again, under the same name, before it opens its engine.

        class Shop(stepfast.Instance):
            def __init__(self, name: str, url: str) -> None:
                super().__init__(name)
                self.client = Client(url)

            @workflow
            def checkout(self, order: str) -> str: ...

        eu = Shop("eu", "https://eu.example.com")
        engine.start(eu.checkout, "order-7")

    Args:
        name: The name of the instance: one per class and name. Making it anew takes its place.

    Raises:
        InvalidArgument: The name is empty.
    """

    def __init__(self, name: str) -> None:
        # a name of another type would be looked for in vain after a crash
        if not isinstance(cast("object", name), str) or not name:
            raise InvalidArgument(
                f"an instance of {type(self).__qualname__} needs a name, not {short_repr(name)}"
            )
        self.name: Final = name
        _instances[type(self), name] = self

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)

        def found(name: Any) -> Any:
            instance = _instances.get((cls, name))
            if instance is None:
                raise DecodeError(
                    f"there is no instance {short_repr(name)} of {cls.__qualname__} in this program: make it "
                    "before the engine is opened"
                )
            return instance

        register(cls, encode=lambda instance: instance.name, decode=found)

    def __rich_repr__(self) -> Iterator[Any]:
        yield self.name


__all__ = ["Instance"]
