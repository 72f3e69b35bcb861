"""`ItemResult`: the result of an item of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

R = TypeVar("R", covariant=True)


class ItemResult(Generic[R]):
    """The result of an item of a batch whose items have outputs of type `R`.

    Attributes:
        index: The index of the item in its batch, from 0.
    """

    __slots__ = ("_is_output", "_value", "index")

    def __init__(self, index: int, is_output: bool, value: Any) -> None:
        self.index: int = index
        # the output, or the exception
        self._is_output, self._value = is_output, value

    def result(self) -> R:
        """Returns the output of the item. Does not wait, because the item has ended.

        Raises:
            WorkflowCancelled: The item was cancelled.
            DecodeError: The output cannot be read.
            Exception: The exception that the workflow has raised; `WorkflowFailed` for a failure without an
                exception of Python.
        """
        if not self._is_output:
            raise self._value
        output: R = self._value
        return output

    def exception(self) -> BaseException | None:
        """Returns the exception that `result` raises; None if the item has an output."""
        return None if self._is_output else self._value

    def __repr__(self) -> str:
        return f"ItemResult({self.index}, {self._value!r})"

    def __rich_repr__(self) -> Iterator[Any]:
        yield self.index
        yield self._value


__all__ = ["ItemResult"]
