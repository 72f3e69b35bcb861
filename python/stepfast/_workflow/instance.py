"""Instances: named objects with a program's configuration, so that workflows can be methods of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

from stepfast._validation.text import short_repr
from stepfast._values import DecodeError, register
from stepfast.errors import InvalidArgument

_instances: Final[dict[tuple[type, str], Instance]] = {}


class Instance:
    """Base of classes whose instances contain the configuration of a program: clients, pools, addresses. Only
    the name of an instance is recorded. So a workflow can be a method of the instance, or take the instance
    as an argument. After a crash the program creates the instance again, under the same name, before it opens
    its engine.

        class Shop(stepfast.Instance):
            def __init__(self, name: str, url: str) -> None:
                super().__init__(name)
                self.client = Client(url)

            @workflow
            def checkout(self, order: str) -> str: ...

        eu = Shop("eu", "https://eu.example.com")
        engine.start(eu.checkout, "order-7")

    Args:
        name: The name of the instance, unique in its class. A new instance with the same name replaces the
            old one.

    Raises:
        InvalidArgument: The name is no text, or is empty.
    """

    def __init__(self, name: str) -> None:
        # with a name of another type, the instance would not be found after a crash
        if not isinstance(cast("object", name), str) or not name:
            raise InvalidArgument(
                f"an instance of {type(self).__qualname__} needs a name, not {short_repr(name)}"
            )
        self.name: Final = name
        _instances[type(self), name] = self

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)

        def find_instance(name: Any) -> Any:
            instance = _instances.get((cls, name))
            if instance is None:
                raise DecodeError(
                    f"there is no instance {short_repr(name)} of {cls.__qualname__} in this program: make it "
                    "before the engine is opened"
                )
            return instance

        register(cls, encode=lambda instance: instance.name, decode=find_instance)

    def __rich_repr__(self) -> Iterator[Any]:
        yield self.name


__all__ = ["Instance"]
