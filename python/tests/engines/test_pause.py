"""Pauses: an execution parks between its steps, and continues after a resume."""

import asyncio
import pathlib
import subprocess
import threading
import time

import pytest

from stepfast import AsyncEngine, Engine, Graph, Status, WorkflowParked, sleep, step, workflow

begun = threading.Semaphore(0)
permits = threading.Semaphore(0)
calls: list[str] = []
STEPS = 1_000


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


@step
def hold(name: str) -> str:
    calls.append(name)
    begun.release()
    assert permits.acquire(timeout=30)
    return name


@step
def note(name: str) -> str:
    calls.append(name)
    return name


@workflow(name="paused in steps")
def two_steps() -> list[str]:
    return [hold("first"), note("second")]


@workflow(name="paused in a loop")
def many_steps(count: int) -> int:
    for n in range(count):
        hold(str(n))
    return count


@workflow(name="paused in a sleep")
def sleeps() -> str:
    sleep(0.3)
    return note("slept")


def wait_parked(engine: Engine, workflow_id: str) -> None:
    """Waits until the execution is parked, and checks that it was paused."""
    with pytest.raises(WorkflowParked, match="paused on request") as raised:
        engine.get(workflow_id).result(timeout=30)
    assert raised.value.code == "SF-0028"
    assert engine.show(workflow_id).execution.is_parked


def test_sync_execution_parks_between_steps(url: str) -> None:
    with Engine(url) as engine:
        handle = engine.start(two_steps.options(workflow_id="p-1"))
        assert begun.acquire(timeout=30)
        assert handle.pause()
        assert handle.status() == Status.RUNNING
        permits.release()
        wait_parked(engine, "p-1")
        assert calls == ["first"]
        assert engine.pause("p-1")
        assert engine.resume("p-1")
        assert engine.get("p-1").result(timeout=30) == ["first", "second"]
        assert calls == ["first", "second"]
        assert not engine.pause("p-1")


def test_sleeping_execution_parks_at_once(url: str) -> None:
    with Engine(url) as engine:
        engine.start(sleeps.options(workflow_id="p-2"))
        assert engine.pause("p-2")
        wait_parked(engine, "p-2")
        assert calls == []
        assert engine.resume("p-2")
        assert engine.get("p-2").result(timeout=30) == "slept"


def wait_for_checkpoint(engine: Engine, workflow_id: str) -> None:
    """Waits until a step of the execution is recorded."""
    while not engine.show(workflow_id).checkpoints:
        time.sleep(0.01)


def test_resume_begins_tasks_that_a_pause_holds(url: str) -> None:
    graph = Graph("resumed graph")
    noted = threading.Semaphore(0)

    def note_end(name: str) -> str:
        noted.release()
        return note.function(name)

    @graph.task
    def left() -> str:
        return hold.function("left")

    @graph.task
    def right() -> str:
        return hold.function("right")

    @graph.task
    def after_left(left: str) -> str:
        return note_end("after left")

    @graph.task
    def after_right(right: str) -> str:
        return note_end("after right")

    with Engine(url) as engine:
        handle = engine.start(graph.options(workflow_id="p-9"))
        for _ in range(2):
            assert begun.acquire(timeout=30)
        assert handle.pause()
        permits.release()
        wait_for_checkpoint(engine, "p-9")
        assert sorted(calls) == ["left", "right"]
        assert handle.resume()
        # one of the tasks still runs
        assert noted.acquire(timeout=30)
        permits.release()
        assert handle.result(timeout=30) == {"after_left": "after left", "after_right": "after right"}
        assert len(calls) == 4


def test_resume_begins_tasks_of_an_async_graph_that_a_pause_holds(url: str) -> None:
    graph = Graph("resumed async graph")

    async def main() -> None:
        begun, permits, noted = asyncio.Semaphore(0), asyncio.Semaphore(0), asyncio.Semaphore(0)

        async def hold() -> int:
            begun.release()
            await permits.acquire()
            return 1

        async def note() -> int:
            noted.release()
            return 1

        @graph.task
        async def left() -> int:
            return await hold()

        @graph.task
        async def right() -> int:
            return await hold()

        @graph.task
        async def after_left(left: int) -> int:
            return await note()

        @graph.task
        async def after_right(right: int) -> int:
            return await note()

        async with AsyncEngine(url) as engine, asyncio.timeout(30):
            handle = await engine.start(graph.options(workflow_id="p-10"))
            for _ in range(2):
                await begun.acquire()
            assert await handle.pause()
            permits.release()
            while not (await engine.show("p-10")).checkpoints:
                await asyncio.sleep(0.01)
            assert noted.locked()
            assert await handle.resume()
            await noted.acquire()
            permits.release()
            assert await handle.result() == {"after_left": 1, "after_right": 1}

    asyncio.run(main())


def test_graph_parks_when_no_task_runs(url: str) -> None:
    graph = Graph("paused graph")

    @graph.task
    def left() -> str:
        return hold.function("left")

    @graph.task
    def right() -> str:
        return hold.function("right")

    @graph.task
    def join(left: str, right: str) -> str:
        return note.function(f"{left} {right}")

    with Engine(url) as engine:
        handle = engine.start(graph.options(workflow_id="p-3"))
        for _ in range(2):
            assert begun.acquire(timeout=30)
        assert handle.pause()
        permits.release(2)
        wait_parked(engine, "p-3")
        assert sorted(calls) == ["left", "right"]
        tree = graph.to_tree(engine.show("p-3"))
        assert "join   ready" in tree or "join  ready" in tree, tree
        assert engine.resume("p-3")
        assert engine.get("p-3").result(timeout=30) == "left right"
        assert sorted(calls) == ["left", "left right", "right"]


def test_async_graph_parks_when_no_task_runs(url: str) -> None:
    graph = Graph("paused async graph")
    events: dict[str, asyncio.Event] = {}

    async def wait(name: str) -> str:
        calls.append(name)
        events[f"{name} begun"].set()
        await events[name].wait()
        return name

    @graph.task
    async def left() -> str:
        return await wait("left")

    @graph.task
    async def right() -> str:
        return await wait("right")

    @graph.task
    async def join(left: str, right: str) -> str:
        calls.append("join")
        return left + right

    async def run() -> None:
        names = ("left", "right", "left begun", "right begun")
        events.update((name, asyncio.Event()) for name in names)
        async with AsyncEngine(url) as engine:
            handle = await engine.start(graph.options(workflow_id="p-4"))
            await events["left begun"].wait()
            await events["right begun"].wait()
            assert await handle.pause()
            events["left"].set()
            events["right"].set()
            with pytest.raises(WorkflowParked, match="paused on request"):
                await (await engine.get("p-4")).result(timeout=30)
            assert sorted(calls) == ["left", "right"]
            counts = await engine.resume_all(is_parked=True, workflow="paused async graph")
            assert counts.done == 1
            assert await (await engine.get("p-4")).result(timeout=30) == "leftright"
            assert calls.count("join") == 1
            assert not await engine.pause("p-4")

    asyncio.run(run())


def test_many_executions_are_paused_by_a_filter(url: str) -> None:
    with Engine(url, max_running=1) as engine:
        engine.start(two_steps.options(workflow_id="p-5"))
        assert begun.acquire(timeout=30)
        for n in range(3):
            engine.start(two_steps.options(workflow_id=f"queued-{n}"))
        counts = engine.pause_all(workflow="paused in steps")
        assert (counts.done, counts.pending, counts.not_applicable) == (3, 1, 0)
        permits.release()
        wait_parked(engine, "p-5")
        assert engine.count(is_parked=True) == 4
        permits.release(4)
        assert engine.resume_all(is_parked=True).done == 4
        for n in range(3):
            assert engine.get(f"queued-{n}").result(timeout=30) == ["first", "second"]
        engine.get("p-5").result(timeout=30)
    while permits.acquire(blocking=False):
        pass
    while begun.acquire(blocking=False):
        pass


def test_program_pauses_and_resumes(url: str, program: pathlib.Path) -> None:
    def run(*arguments: str) -> str:
        command = [program, "workflow", *arguments, "--store", url]
        process = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return process.stdout + process.stderr

    with Engine(url) as engine:
        engine.start(many_steps.options(workflow_id="p-6"), STEPS)
        assert begun.acquire(timeout=30)
        assert run("pause", "p-6") == "p-6: pending: recorded; the worker that runs it parks it\n"
        # the worker receives the request with a heartbeat, while some further steps may run
        for _ in range(STEPS):
            permits.release()
            if not begun.acquire(timeout=1) and engine.show("p-6").execution.is_parked:
                break
        wait_parked(engine, "p-6")
        assert len(calls) < STEPS
        assert "paused on request" in run("show", "p-6")
        assert run("resume", "p-6") == "p-6: done\n"
        permits.release(STEPS)
        assert engine.get("p-6").result(timeout=30) == STEPS
        assert calls == [str(n) for n in range(STEPS)]
        assert run("pause", "p-6").startswith("p-6: not_applicable: its status is completed")
    while permits.acquire(blocking=False):
        pass
    while begun.acquire(blocking=False):
        pass
