"""Describes how far each task of a graph is, by the record of an execution."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from stepfast._graph.task import Task

if TYPE_CHECKING:
    from stepfast._engine.records import Checkpoint, Record


def task_notes(tasks: Iterable[Task[..., Any]], record: Record) -> dict[str, str]:
    """Returns a note for each task by name: its state and duration, and the error of a failed task.

    Args:
        tasks: The tasks of the graph, which is complete.
        record: The record of an execution of the graph.
    """
    has_ended = record.execution.ended_at is not None
    by_task: defaultdict[str, list[Checkpoint]] = defaultdict(list)
    for checkpoint in record.checkpoints:
        by_task[checkpoint.path.partition(".")[0]].append(checkpoint)
    return {task.name: _note(task, by_task[str(task.settings.path)], has_ended) for task in tasks}


def _note(task: Task[..., Any], checkpoints: list[Checkpoint], has_ended: bool) -> str:
    # callbacks are below a second 0, and the last one of repetitions counts
    outcomes = {_place_of(each.path): each for each in checkpoints if ".0.0." not in f"{each.path}."}
    if not outcomes:
        return "skipped" if has_ended else "pending"
    failed = [each for each in outcomes.values() if each.kind == "failed"]
    duration = _shown(max((each.duration for each in outcomes.values()), default=timedelta()))
    items = f"{len(outcomes)} items" if task.map_over is not None else ""
    error = repr(failed[0].value) if failed else ""
    return "  ".join(part for part in ("failed" if failed else "succeeded", items, duration, error) if part)


def _place_of(path: str) -> str:
    """Returns the position of a task or an item, without the number of its repetition."""
    return path.partition(".0.")[0]


def _shown(duration: timedelta) -> str:
    seconds = duration.total_seconds()
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


__all__ = ["task_notes"]
