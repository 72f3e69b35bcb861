"""Codec of pydantic's validation errors. Only a function of pydantic can create such an error."""

import sys
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Final

from ..errors import NotRecordable, text_of, to_unicode

#: The maximum length of the text that stands for an input that cannot be recorded, in characters.
_MAX_INPUT_CHARS: Final = 1_000


def is_validation_error(cls: type) -> bool:
    """Returns whether a class is pydantic's class of validation errors."""
    core: Any = sys.modules.get("pydantic_core")
    return core is not None and cls is core.ValidationError


def reduce_validation_error(error: Any, is_recordable: Callable[[Any], bool] | None = None) -> list[Any]:
    """Takes a validation error apart.

    Args:
        error: The error.
        is_recordable: A function that returns whether a value can be recorded. Other values are recorded as
            text. By default all values are taken as they are.

    Raises:
        NotRecordable: The error cannot be made again with the same text.
    """
    lines = [
        [
            line["type"],
            list(line["loc"]),
            line["msg"],
            *_reduce_input(line["input"], is_recordable),
            _reduce_context(line.get("ctx"), is_recordable),
        ]
        for line in error.errors(include_url=False)
    ]
    text = text_of(error)
    for form in _forms():
        content = [error.title, lines, *form]
        try:
            rebuilt = read_validation_error(content)
        except Exception:
            continue
        if text_of(rebuilt) == text:
            return content
    raise NotRecordable("a validation error has another text when it is made again")


def _forms() -> Iterator[tuple[bool, str, bool]]:
    """Yields the forms in which pydantic may make an error again. A form says whether all lines are custom
    errors, which kind of input they have, and whether the text hides the input."""
    yield from product((False, True), ("python", "json"), (False, True))


def read_validation_error(content: list[Any]) -> Any:
    """Rebuilds a validation error."""
    core: Any = sys.modules["pydantic_core"]
    title, lines, is_custom, input_kind, hides_input = content
    details: list[dict[str, Any]] = []
    for kind, place, message, is_text, value, type_name, context in lines:
        is_known = not is_custom and _is_known(core, kind, context)
        details.append(
            {
                # a custom error has a template without a context, so that no part of the message is replaced
                "type": kind if is_known else core.PydanticCustomError(kind, message),
                "loc": tuple(place),
                "input": _input_of_text(value, type_name) if is_text else value,
                **({"ctx": context} if is_known and context else {}),
            }
        )
    return core.ValidationError.from_exception_data(title, details, input_kind, hides_input)


def _is_known(core: Any, kind: str, context: dict[str, Any] | None) -> bool:
    """Returns whether pydantic itself defines this type of error."""
    try:
        core.PydanticKnownError(kind, context)
    except (KeyError, TypeError, ValueError):
        return False
    return True


def _reduce_input(value: Any, is_recordable: Callable[[Any], bool] | None) -> tuple[bool, Any, str]:
    """Returns whether the text of the input is recorded, the input or its text, and the name of its type."""
    if is_recordable is None or is_recordable(value):
        return False, value, ""
    return True, to_unicode(repr(value)[:_MAX_INPUT_CHARS]), type(value).__qualname__


def _input_of_text(text: str, type_name: str) -> object:
    """Returns an object that looks like the input in the text of an error."""
    return type(type_name, (), {"__repr__": _constant(text)})()


def _constant(text: str) -> Callable[[object], str]:
    return lambda _: text


def _reduce_context(
    context: dict[str, Any] | None, is_recordable: Callable[[Any], bool] | None
) -> dict[str, Any] | None:
    if context is None or is_recordable is None:
        return context
    return {name: item if is_recordable(item) else to_unicode(str(item)) for name, item in context.items()}
