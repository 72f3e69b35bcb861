"""`RemoteError`: stands for exceptions that cannot be rebuilt."""

from stepfast.errors import Error

from ..errors import type_name


class RemoteError(Error):
    """An exception in place of one whose class is not found here, or of which no instance can be made. The
    `code` is SF-0008.

    Attributes:
        kind: The name of the original exception's class.
        message: The text of the original exception.
        exceptions: The members of the original exception, if it was a group.
        bases: The names of the classes from which the original class derives, if they were recorded.
    """

    code = "SF-0008"

    def __init__(self, kind: str, message: str) -> None:
        # `args` does not have the code, which is the same for all instances
        Exception.__init__(self, kind, message)
        self.kind: str = kind
        self.message: str = message
        self.exceptions: tuple[BaseException, ...] = ()
        self.bases: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ": ".join(part for part in (self.kind, self.message) if part)

    def is_a(self, cls: type[BaseException]) -> bool:
        """Returns whether the original exception was an instance of a class, by the recorded names of its
        class and bases.

        Args:
            cls: The class, which is compared by its name.
        """
        return cls in (Exception, BaseException) or type_name(cls) in (self.kind, *self.bases)


def base_names(cls: type[BaseException]) -> list[str]:
    """Returns the names of the classes from which an exception class derives, without the most general
    classes."""
    names = [type_name(base) for base in cls.__mro__ if base not in (BaseException, Exception, object)]
    # a hidden subclass has the same name as the class from which it derives
    return [name for name in names if name != type_name(cls)]
