"""Callbacks of tasks: `on_success` and `on_failure`."""

import asyncio
from typing import Any

import pytest

from stepfast import AsyncEngine, Context, Engine, Graph, InvalidArgument


def note(seen: list[Any]) -> Any:
    def on_success(task: str, value: Any) -> None:
        seen.append((task, value))

    return on_success


def note_error(seen: list[Any]) -> Any:
    def on_failure(task: str, error: Exception) -> None:
        seen.append((task, str(error)))

    return on_failure


def test_callbacks_run_after_the_end_of_a_task(url: str) -> None:
    graph = Graph("callbacks")
    seen: list[Any] = []

    @graph.task(on_success=note(seen), on_failure=note_error(seen))
    def good(number: int) -> int:
        return number + 1

    @graph.task(retries=1, backoff=0, may_fail=True, on_success=note(seen), on_failure=note_error(seen))
    def bad(good: int) -> int:
        raise ValueError(f"bad {good}")

    with Engine(url) as engine:
        assert engine.run(graph.options(workflow_id="x"), number=1) is None
        names = [each.name for each in engine.show("x").checkpoints]
    assert seen == [("good", 2), ("bad", "bad 2")]
    assert names == ["good", "good.on_success", "bad", "bad.on_failure"]


def test_failure_of_a_callback_is_recorded_and_changes_nothing(url: str) -> None:
    graph = Graph("callback_fails")

    def broken() -> None:
        raise ValueError("broken callback")

    @graph.task(on_success=broken)
    def task() -> int:
        return 1

    @graph.task
    def after(task: int) -> int:
        return task + 1

    with Engine(url) as engine:
        assert engine.run(graph.options(workflow_id="x")) == 2
        record = engine.show("x")
        kinds = {each.name: (each.kind, str(each.value)) for each in record.checkpoints}
    assert kinds["task.on_success"] == ("failed", "broken callback")
    assert kinds["after"] == ("step", "2")


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_callback_runs_once_for_each_failure_across_resumes(url: str, is_async: bool) -> None:
    graph = Graph(f"callback_resumed_{is_async}")
    seen: list[Any] = []
    attempts: list[int] = []

    def fail_twice() -> int:
        attempts.append(1)
        if len(attempts) <= 2:
            raise ValueError(f"attempt {len(attempts)}")
        return 7

    async def fail_twice_async() -> int:
        return fail_twice()

    decorate = graph.task(name="task", on_success=note(seen), on_failure=note_error(seen))
    decorate(fail_twice_async if is_async else fail_twice)

    async def main() -> Any:
        async with AsyncEngine(url) as engine:
            handle = await engine.start(graph)
            for _ in range(2):
                with pytest.raises(ValueError, match="attempt"):
                    await (await engine.get(handle.workflow_id)).result()
                await handle.resume()
            return await (await engine.get(handle.workflow_id)).result()

    assert asyncio.run(main()) == 7
    assert seen == [("task", "attempt 1"), ("task", "attempt 2"), ("task", 7)]


def test_callback_of_a_mapped_task_runs_for_each_item(url: str) -> None:
    graph = Graph("callback_items")
    seen: list[Any] = []

    @graph.task
    def items() -> list[int]:
        return [0, 1, 2]

    @graph.task(
        map_over=items, may_fail=True, max_items=1, on_success=note(seen), on_failure=note_error(seen)
    )
    def each(items: int) -> float:
        return 1 / items

    with Engine(url) as engine:
        engine.run(graph)
    assert seen == [("each", "division by zero"), ("each", 1.0), ("each", 0.5)]


def test_async_callback_needs_an_async_engine(url: str) -> None:
    graph = Graph("callback_async")
    seen: list[Any] = []

    async def notify(value: int) -> None:
        await asyncio.sleep(0)
        seen.append(value)

    @graph.task(on_success=notify)
    def task(context: Context) -> int:
        context["a"] = 1
        return 3

    async def main() -> Any:
        async with AsyncEngine(url) as engine:
            return await engine.run(graph)

    assert graph.validate() is None and graph.is_async
    assert asyncio.run(main()) == {"a": 1}
    assert seen == [3]


def test_wrong_callbacks_are_rejected() -> None:
    graph = Graph("wrong_callbacks")
    with pytest.raises(
        InvalidArgument, match="on_success of task 'task' of graph .* has the parameter 'error', and takes"
    ):
        graph.task(name="task", on_success=lambda error: None)(lambda: None)
    with pytest.raises(InvalidArgument, match="on_failure"):
        graph.task(name="task", on_failure=3)(lambda: None)  # type: ignore[arg-type]
