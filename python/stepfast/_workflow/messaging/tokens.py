"""Tokens in the code of workflows."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from typing import Any, Generic, TypeVar, overload

from stepfast import _native
from stepfast._runtime.branch import current_branch
from stepfast._runtime.waiting import wait_for_call
from stepfast._validation.durations import Duration, to_timeout
from stepfast.errors import InvalidArgument

T = TypeVar("T", covariant=True)


class _TokenReference:
    """A token, for the workflow that has created it."""

    __slots__ = ("_native",)

    def __init__(self, native: _native.Token) -> None:
        self._native = native

    @property
    def id(self) -> str:
        """The id to hand out: letters, digits and dots. Everyone who knows the id can provide the value. The
        id contains 122 random bits."""
        return self._native.id

    def _result_call(self, timeout: Duration | None) -> _native.Call:
        seconds = to_timeout("timeout", timeout)
        branch = current_branch()
        if branch is None:
            raise InvalidArgument(
                "the result of a token is for the code of the workflow that has created the token: wait "
                "there, and pass the value on"
            )
        return self._native.result(branch, seconds)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    def __rich_repr__(self) -> Iterator[Any]:
        yield self.id


class Token(_TokenReference, Generic[T]):
    """A token that a sync workflow has created by `create_token`. `engine.complete_token` provides its value,
    of type `T`, and `engine.fail_token` an error. One answer counts.

    Attributes:
        id: The id to hand out: letters, digits and dots. Everyone who knows the id can provide the value. The
            id contains 122 random bits.
    """

    __slots__ = ()

    @overload
    def result(self, timeout: None = None) -> T: ...

    @overload
    def result(self, timeout: Duration | None) -> T | None: ...

    def result(self, timeout: Duration | None = None) -> T | None:
        """Waits durably for the value of the token. While the wait lasts, the execution takes neither a
        thread nor memory after the engine's `suspend_after`.

        Args:
            timeout: The longest time to wait, as seconds or as a `timedelta`; no limit by default. The token
                stays valid after a timeout: a further call continues the wait.

        Returns:
            The value, or None after the timeout. A further call returns the same value.

        Raises:
            InvalidArgument: The caller is not the code of a workflow, the timeout is negative, or another
                branch of the code waits for the token.
            Exception: The exception that was passed to `engine.fail_token`; `WorkflowFailed` for a text.
        """
        value: T | None = wait_for_call(self._result_call(timeout))
        return value


class AsyncToken(_TokenReference, Generic[T]):
    """A token that an async workflow has created by `create_token`. See `Token`.

    Attributes:
        id: The id to hand out. See `Token.id`.
    """

    __slots__ = ()

    @overload
    def result(self, timeout: None = None) -> Awaitable[T]: ...

    @overload
    def result(self, timeout: Duration | None) -> Awaitable[T | None]: ...

    def result(self, timeout: Duration | None = None) -> Awaitable[T | None]:
        """Waits durably for the value of the token: `value = await token.result()`. See `Token.result`."""
        return self._result_call(timeout)


def create_token() -> Any:
    """Creates a token, whose value the outside provides, once: an approval, or the callback of another
    service. Write `token = create_token()` in sync code, and `token = await create_token()` in async code.
    Only the code of a workflow can create tokens.

    A step hands out `token.id`; `token.result()` waits for the value. A program that knows the id provides
    the value by `engine.complete_token`, in any process. The token is durable before the next step begins. A
    replay returns the same token.

    Returns:
        A `Token`. In async code an object to await, which returns an `AsyncToken`.

    Raises:
        InvalidArgument: The caller is not the code of a workflow.
    """
    branch = current_branch()
    if branch is None:
        raise InvalidArgument(
            "create_token is called outside of the code of a workflow, such as in a step: create the token "
            "in the workflow, and pass token.id to the step"
        )
    call = _native.Token.create(branch)
    return _create_async(call) if branch.is_on_loop else Token[Any](wait_for_call(call))


async def _create_async(call: _native.Call) -> AsyncToken[Any]:
    return AsyncToken[Any](await call)


__all__ = ["AsyncToken", "Token", "create_token"]
