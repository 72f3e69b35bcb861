"""Direct calls of workflows, which record nothing."""

from __future__ import annotations

from stepfast._runtime.branch import current_code
from stepfast._runtime.caller_warnings import warn_caller
from stepfast._workflow.registry import open_engines


def warn_of_direct_call(name: str) -> None:
    """Warns of a workflow that is called as a plain function although an engine is open in this process. Does
    not warn in the body of a step, whose outcome is recorded anyway.

    Args:
        name: The name of the workflow.
    """
    if current_code.get() is not None or all(engine.is_closed for engine in list(open_engines)):
        return
    warn_caller(
        f"workflow {name!r} is called directly while an engine is open: it runs as a plain function, and "
        "nothing of it is recorded. Run it by engine.run(...) or engine.start(...), or call its function by "
        "the workflow's attribute __wrapped__"
    )


__all__ = ["warn_of_direct_call"]
