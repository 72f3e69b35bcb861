"""Checks attributes: names with values by which executions are found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from stepfast._validation import bounds
from stepfast._validation.text import short_repr
from stepfast.errors import InvalidArgument

#: The maximum size of a name and of a value in bytes, and the maximum number of attributes of an execution.
MAX_NAME_BYTES: Final = 128
MAX_VALUE_BYTES: Final = 1024
MAX_ATTRIBUTES: Final = 64


def check_attributes(attributes: Any) -> dict[str, str]:
    """Checks attributes, and returns a copy of them.

    Raises:
        InvalidArgument: The attributes are no mapping of texts, a name or a value exceeds its bounds, or
            there are too many.
    """
    if not isinstance(attributes, Mapping):
        raise InvalidArgument(f"attributes is {short_repr(attributes)}, and must be a dict of texts")
    copied = dict(cast("dict[Any, Any]", attributes))
    if len(copied) > MAX_ATTRIBUTES:
        raise InvalidArgument(
            f"attributes has {len(copied)} names, and an execution may have at most {MAX_ATTRIBUTES}"
        )
    for name, value in copied.items():
        check_attribute_name("a name in attributes", name)
        bounds.check_name(f"attributes[{short_repr(name)}]", value, MAX_VALUE_BYTES)
    return copied


def check_attribute_name(what: str, name: Any) -> None:
    """Checks the name of an attribute.

    Raises:
        InvalidArgument: The name is no text, exceeds its bounds, or contains `=`.
    """
    bounds.check_name(what, name, MAX_NAME_BYTES)
    if "=" in name:
        raise InvalidArgument(f"{what} is {short_repr(name)}, and must not contain '='")
