"""Races of calls in threads. In a sync workflow each call is a branch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any

from stepfast import _native
from stepfast._runtime.branch import current_branch, current_code, unwind_exception
from stepfast._runtime.waiting import wait_for_call
from stepfast.errors import Cancelled, Suspended

#: The output of a call, or None and the exception that the call has raised.
_Outcome = tuple[Any, BaseException | None]


def race_in_threads(calls: Sequence[Callable[[], Any]]) -> tuple[int, Any]:
    """Makes all calls, each in a thread of its own, until the first of them ends.

    In a workflow each call is a branch. The branches of the other calls unwind, and their threads end before
    this function returns. Elsewhere the threads continue, because they cannot be interrupted.

    Args:
        calls: The functions, at least one.

    Returns:
        The index and the output of the call that ends first.

    Raises:
        BaseException: The exception of the call that ends first.
    """
    branch = current_branch()
    return _race_plain_calls(calls) if branch is None else _race_branches(branch, calls)


def _race_branches(branch: _native.Branch, calls: Sequence[Callable[[], Any]]) -> tuple[int, Any]:
    if branch.stop_code:
        raise unwind_exception(branch.stop_code)
    decision, branches = _native.begin_race(branch, len(calls))
    outcomes: list[_Outcome] = [(None, None)] * len(calls)
    threads: list[threading.Thread] = []
    try:
        for number, (call, racing) in enumerate(zip(calls, branches, strict=True)):
            args = (_run_branch, call, racing, outcomes, number)
            threads.append(_start_thread(number, args))
        winner: int = wait_for_call(decision)
    except (Suspended, Cancelled):
        _join(threads)
        raise
    except BaseException:
        # the program ends, or a thread cannot start: the execution continues later from its record
        branch.defer()
        raise
    finally:
        decision.close()
    # the losers abandon their calls while their threads unwind, before the caller continues
    _join(threads)
    try:
        for _, raised in outcomes:
            if raised is not None and not isinstance(raised, Exception | Suspended | Cancelled):
                # the exception is, for example, a SystemExit, which ends the program
                raise raised
        if branch.stop_code:
            raise unwind_exception(branch.stop_code)
        output, raised = outcomes[winner]
        if raised is not None:
            raise raised
        return winner, output
    finally:
        # the traceback of a raised exception refers to this frame, which would make a reference cycle
        outcomes.clear()
        raised = None


def _run_branch(
    call: Callable[[], Any], branch: _native.Branch, outcomes: list[_Outcome], number: int
) -> None:
    """Makes a call in this new thread, as the code of its branch."""
    current_code.set(branch)
    try:
        outcomes[number] = (call(), None)
    except BaseException as raised:
        outcomes[number] = (None, raised)
    finally:
        branch.end()


def _race_plain_calls(calls: Sequence[Callable[[], Any]]) -> tuple[int, Any]:
    ended: SimpleQueue[tuple[int, _Outcome]] = SimpleQueue()
    for number, call in enumerate(calls):
        _start_thread(number, (_run_plain_call, call, ended, number))
    winner, (output, raised) = ended.get()
    try:
        if raised is not None:
            raise raised
        return winner, output
    finally:
        raised = None


def _run_plain_call(call: Callable[[], Any], ended: SimpleQueue[tuple[int, _Outcome]], number: int) -> None:
    """Makes a call in this new thread, outside of workflow code."""
    try:
        ended.put((number, (call(), None)))
    except BaseException as raised:
        ended.put((number, (None, raised)))


def _start_thread(number: int, args: tuple[Any, ...]) -> threading.Thread:
    """Starts the thread of the call with this number, in a copy of the caller's context."""
    name = f"stepfast-race-{number}"
    thread = threading.Thread(target=copy_context().run, args=args, name=name, daemon=True)
    thread.start()
    return thread


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join()
