"""`RemoteError`: stands for exceptions that cannot be rebuilt."""

from stepfast.errors import Error

from ..errors import type_name


class RemoteError(Error):
    """Stands for an exception whose class cannot be found or made here. Its `code` is SF-0008.

    Attributes:
        kind: The name of its class.
        message: Its text.
        exceptions: Its members, if the exception was a group.
        bases: The names of the classes from which its class derives, if they were recorded.
    """

    code = "SF-0008"

    def __init__(self, kind: str, message: str) -> None:
        # without the code, which is the same for all
        Exception.__init__(self, kind, message)
        self.kind: str = kind
        self.message: str = message
        self.exceptions: tuple[BaseException, ...] = ()
        self.bases: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ": ".join(part for part in (self.kind, self.message) if part)

    def is_a(self, cls: type[BaseException]) -> bool:
        """Returns whether the exception was an instance of a class, as far as its recorded names say.

        Args:
            cls: The class, or a class from which it derives.
        """
        return cls in (Exception, BaseException) or type_name(cls) in (self.kind, *self.bases)


def base_names(cls: type[BaseException]) -> list[str]:
    """Returns the names of the classes from which an exception class derives, without the most general
    ones."""
    names = [type_name(base) for base in cls.__mro__ if base not in (BaseException, Exception, object)]
    # a hidden subclass has the name of its class
    return [name for name in names if name != type_name(cls)]
