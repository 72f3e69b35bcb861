"""What encoding and decoding raise."""

from typing import Final

from stepfast.errors import Error

ADVICE: Final = (
    "convert it to a type that can be recorded, return an id by which it is found again, "
    "or register a codec for it with stepfast.values.register"
)


class EncodeError(Error, TypeError):
    """A value cannot be recorded so that it comes back as it was. Its `code` is SF-0030.

    Attributes:
        path: Where in the value, such as `value.items[3].price`.
        type_name: The type of what stands there.
    """

    def __init__(self, message: str, *, path: str = "value", type_name: str = "") -> None:
        super().__init__(message, "SF-0030")
        self.path: str = path
        self.type_name: str = type_name


class DecodeError(Error, ValueError):
    """A recorded value cannot be read back by this program. Its `code` is SF-0031."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message, "SF-0031")


class Refusal(Exception):
    """Why an object cannot be recorded; becomes an `EncodeError` once its path is known."""

    def __init__(self, reason: str, advice: str = ADVICE) -> None:
        super().__init__(reason)
        self.reason = reason
        self.advice = advice


def type_name(cls: type) -> str:
    """`int`, or `shop.models.Order`: how messages name a type."""
    if cls.__module__ == "builtins":
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"


def text_of(error: BaseException) -> str:
    """What an exception says, whatever its `__str__` does, as text that can be recorded."""
    try:
        text = str(error)
    except Exception as failure:
        text = f"<no text: {type_name(type(failure))} in __str__>"
    return unicode_of(text)


def unicode_of(text: str) -> str:
    """The text, with lone surrogates spelt out."""
    return text.encode("utf-8", "backslashreplace").decode()
