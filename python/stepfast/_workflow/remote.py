"""Workflows whose code is in another program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, Unpack

from stepfast._options.start_options import CheckedOptions, StartOptions, check_options
from stepfast._validation import bounds
from stepfast._workflow.startable import Startable

if TYPE_CHECKING:
    # for type checkers only: `typing_extensions` has type variables with defaults, and need not be installed
    from typing_extensions import ParamSpec, TypeVar

    P = ParamSpec("P", default=...)
    R = TypeVar("R", covariant=True, default=Any)
else:
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R", covariant=True)


class Unspecified:
    """A type that no program uses. Overloads for `RemoteWorkflow[[Unspecified], Unspecified]` accept a
    `RemoteWorkflow("send")` without types as an argument of a call: pyright cannot infer its types there."""


class RemoteWorkflow(Startable[P, R], Generic[P, R]):
    """A workflow by its name, for programs that start executions and do not have the code:
    `client.start(RemoteWorkflow("send"), "ann")`. A `RemoteWorkflow` cannot be called.

    If the program defines a workflow of this name, its engines and clients check the arguments. An engine
    that has registered the workflow may run the execution. Otherwise another worker runs the execution, and
    the arguments are not checked.

    From a `RemoteWorkflow[[str], None]("send")` type checkers know the types of the parameters and of the
    output.

    Args:
        name: The name under which the workflow is recorded.

    Raises:
        InvalidArgument: The name is no text, is empty or has more than 255 bytes.

    Attributes:
        name: The name under which the workflow is recorded.
    """

    def __init__(self, name: str) -> None:
        bounds.check_name("the workflow's name", name)
        self.name: str = name
        self.start_options: CheckedOptions | None = None

    def options(self, **options: Unpack[StartOptions]) -> RemoteWorkflow[P, R]:
        """Returns the workflow with options for its start. See `Workflow.options`.

        Args:
            options: The options; see `StartOptions`.
        """
        configured: RemoteWorkflow[P, R] = RemoteWorkflow(self.name)
        before = {} if self.start_options is None else self.start_options.values
        configured.start_options = check_options({**before, **options})
        return configured

    def __repr__(self) -> str:
        return f"RemoteWorkflow({self.name!r})"

    def __rich_repr__(self) -> Iterator[Any]:
        yield self.name


__all__ = ["RemoteWorkflow", "Unspecified"]
