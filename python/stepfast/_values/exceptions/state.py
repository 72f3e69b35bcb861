"""The state of exceptions: their arguments, slots and attributes."""

from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, Final, cast

from ..codec import derives_from
from .remote_error import RemoteError

Group = BaseExceptionGroup[BaseException]

_IGNORED_ATTRIBUTES: Final = frozenset({"obj", "exceptions", "message"})


def state_of(error: BaseException) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the state of an exception: its arguments with its slots, and its attributes."""
    cls = type(error)
    state: dict[str, Any] = {"args": error.args}
    if derives_from(cls, BaseExceptionGroup):
        state["args"] = (cast(Group, error).message,)
    for base in cls.__mro__[: cls.__mro__.index(BaseException)]:
        is_built_in = base.__module__ == "builtins"
        for attribute, descriptor in vars(base).items():
            if attribute.startswith("__") or (is_built_in and attribute in _IGNORED_ATTRIBUTES):
                continue
            if isinstance(descriptor, (MemberDescriptorType, GetSetDescriptorType)):
                item = getattr(error, attribute, None)
                if item is not None or (not is_built_in and hasattr(error, attribute)):
                    state[attribute] = item
    attributes = dict(error.__dict__)
    if cls is RemoteError:
        del attributes["exceptions"]
        if not attributes["bases"]:
            del attributes["bases"]
    return state, attributes


def make_exception(
    cls: type[BaseException],
    state: dict[str, Any],
    attributes: dict[str, Any],
    members: tuple[BaseException, ...],
) -> BaseException:
    """Rebuilds an exception from its state, without calling its constructor."""
    base: Any = next(base for base in cls.__mro__ if base.__module__ == "builtins")
    args = state["args"]
    is_real_group = issubclass(cls, BaseExceptionGroup)
    if is_real_group:
        args = (*args, members)
    made: BaseException = base.__new__(cls, *args)
    for name, item in state.items():
        if name != "args" or not is_real_group:
            object.__setattr__(made, name, item)
    if cls is RemoteError:
        made.__dict__.update(exceptions=members, bases=())
    made.__dict__.update(attributes)
    return made
