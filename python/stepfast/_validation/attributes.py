"""Attributes: names with values by which executions are found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from stepfast._validation import bounds
from stepfast._validation.text import shown
from stepfast.errors import Invalid

#: Most bytes of a name, of a value, and most attributes of an execution.
NAME: Final = 128
VALUE: Final = 1024
COUNT: Final = 64


def checked(attributes: Any) -> dict[str, str]:
    """These attributes.

    Raises:
        Invalid: They are no mapping of texts, or one is out of its bounds, or there are too many.
    """
    if not isinstance(attributes, Mapping):
        raise Invalid(f"attributes is {shown(attributes)}, and must be a dict of texts")
    found = dict(cast("dict[Any, Any]", attributes))
    if len(found) > COUNT:
        raise Invalid(f"attributes has {len(found)} names, and an execution at most {COUNT}")
    for name, value in found.items():
        bounds.name("a name in attributes", name, NAME)
        if "=" in name:
            raise Invalid(f"a name in attributes is {shown(name)}, and must not contain '='")
        bounds.name(f"attributes[{shown(name)}]", value, VALUE)
    return found
