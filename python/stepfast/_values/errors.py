"""The exceptions of encoding and decoding."""

from typing import Final

from stepfast.errors import Error

DEFAULT_ADVICE: Final = (
    "convert it to a type that can be recorded, return an id by which it is found again, "
    "or register a codec for it with stepfast.values.register"
)


class EncodeError(Error, TypeError):
    """A value cannot be recorded, because decoding would not return an equal value. The `code` is SF-0030.

    Attributes:
        path: The position in the value, such as `value.items[3].price`.
        type_name: The type of the value at that position.
    """

    def __init__(self, message: str, *, path: str = "value", type_name: str = "") -> None:
        super().__init__(message, "SF-0030")
        self.path: str = path
        self.type_name: str = type_name


class DecodeError(Error, ValueError):
    """This program cannot read a recorded value. The `code` is SF-0031."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message, "SF-0031")


class NotRecordable(Exception):
    """An object cannot be recorded, for the reason in the message. Becomes an `EncodeError` once the path of
    the object is known."""

    def __init__(self, reason: str, advice: str = DEFAULT_ADVICE) -> None:
        super().__init__(reason)
        self.reason = reason
        self.advice = advice


def type_name(cls: type) -> str:
    """Returns the name of a type for messages, such as `int` or `shop.models.Order`."""
    if cls.__module__ == "builtins":
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"


def text_of(error: BaseException) -> str:
    """Returns the text of an exception in a form that can be recorded, even if its `__str__` raises."""
    try:
        text = str(error)
    except Exception as failure:
        text = f"<no text: {type_name(type(failure))} in __str__>"
    return to_unicode(text)


def to_unicode(text: str) -> str:
    """Returns the text with lone surrogates replaced by backslash escapes."""
    return text.encode("utf-8", "backslashreplace").decode()
