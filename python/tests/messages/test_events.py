"""Events: set by the code of workflows, and read by engines, clients, handles and workflows."""

from __future__ import annotations

import asyncio
import datetime
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from stepfast import (
    AsyncEngine,
    Client,
    EncodeError,
    Engine,
    Event,
    ExecutionEnded,
    InvalidArgument,
    NotFound,
    Status,
    Wait,
    gather,
    get_event,
    receive,
    set_event,
    step,
    workflow,
)


@dataclass
class Progress:
    done: int
    total: int


@workflow
def sets_events(total: int) -> None:
    for done in range(total):
        set_event("progress", Progress(done + 1, total))
    receive()
    set_event("last", None)


@workflow
async def sets_events_async(total: int) -> None:
    await asyncio.gather(*(_set_in_task(n) for n in range(total)))
    await receive()
    await set_event("last", "async")


async def _set_in_task(number: int) -> None:
    await set_event(f"e{number}", number)


@workflow
def reads_event(workflow_id: str, name: str, timeout: float | None = None) -> Any:
    return get_event(workflow_id, name, timeout=timeout)


@workflow
async def reads_event_async(workflow_id: str, name: str) -> Any:
    return await get_event(workflow_id, name)


@workflow
def reads_event_of_child() -> Any:
    child = sets_one_event.start(7)
    value = get_event(child.workflow_id, "e")
    child.result()
    return value


@workflow
def sets_one_event(value: Any) -> None:
    set_event("e", value)


@workflow
def reads_events_in_branches(workflow_id: str) -> tuple[Any, ...]:
    return gather(lambda: get_event(workflow_id, "e0"), lambda: get_event(workflow_id, "e1"))


@workflow
def catches_missing_event(workflow_id: str) -> str:
    try:
        get_event(workflow_id, "missing")
    except (NotFound, ExecutionEnded) as error:
        return f"{type(error).__name__} {error.code}"
    return "read"


@step
def sets_event_in_step() -> None:
    set_event("e", 1)


@step
def reads_event_in_step() -> Any:
    return get_event("a", "e")


@workflow
def uses_events_in_steps() -> list[str]:
    errors: list[str] = []
    for use in (sets_event_in_step, reads_event_in_step):
        with pytest.raises(InvalidArgument) as raised:
            use()
        errors.append(str(raised.value))
    return errors


def test_events_are_read_while_the_execution_runs_and_after_its_end(url: str) -> None:
    with Engine(url) as engine:
        handle = engine.start(sets_events.options(workflow_id="a"), 3)
        assert engine.get_event("a", "progress", timeout=60).total == 3
        engine.send("a", "go on")
        assert handle.get_event("last", timeout=60) is None
        handle.result()
        assert engine.get_event("a", "progress") == Progress(3, 3)
        assert engine.get_event("a", "progress", timeout=datetime.timedelta(0)) == Progress(3, 3)
        events = engine.events("a")
        assert [event.name for event in events] == ["progress"] * 3 + ["last"]
        assert [event.value for event in events] == [*(Progress(n, 3) for n in (1, 2, 3)), None]
        now = datetime.datetime.now(datetime.UTC)
        assert all(now - event.set_at < datetime.timedelta(minutes=5) for event in events)
        kinds = [checkpoint.kind for checkpoint in engine.show("a").checkpoints]
        assert kinds == ["event"] * 3 + ["message", "event"]
    assert isinstance(events[0], Event)


def test_client_waits_for_event(url: str) -> None:
    with Engine(url) as engine, Client(url) as client:
        engine.start(sets_events.options(workflow_id="a"), 1)
        values: list[Any] = []
        reader = threading.Thread(target=lambda: values.append(client.get_event("a", "last")))
        reader.start()
        assert client.get_event("a", "last", timeout=0.05) is None
        client.send("a", "go on")
        reader.join(60)
        assert values == [None]


def test_events_of_async_code(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            handle = await engine.start(sets_events_async.options(workflow_id="a"), 3)
            read = [await engine.get_event("a", f"e{n}") for n in range(3)]
            assert read == [0, 1, 2]
            waiting = asyncio.create_task(handle.get_event("last"))
            reading = await engine.start(reads_event_async, "a", "last")
            assert await handle.get_event("last", timeout=0) is None
            await handle.send("go on")
            assert await waiting == "async" == await reading
            await handle
            assert len(await engine.events("a")) == 4

    asyncio.run(main())


def test_suspended_reader_is_woken(url: str) -> None:
    with Engine(url, suspend_after=0.01) as engine:
        setter = engine.start(sets_events.options(workflow_id="a"), 1)
        reader = engine.start(reads_event.options(workflow_id="r"), "a", "last")
        while reader.status() != Status.WAITING or setter.status() != Status.WAITING:
            pass
        key = engine.show("r").waits[0].key
        assert engine.show("r").waits == (Wait("event", key, "last"),) and key
        assert engine.show("a").waits == (Wait("message", None, "default"),)
        engine.send("a", "go on")
        assert reader.result(60) is None
        assert engine.show("r").waits == ()
        kinds = [checkpoint.kind for checkpoint in engine.show("r").checkpoints]
        assert kinds == ["event read"]


def test_workflows_read_events(url: str) -> None:
    with Engine(url) as engine:
        engine.run(sets_one_event.options(workflow_id="large"), "x" * 200_000)
        assert engine.run(reads_event, "large", "e") == "x" * 200_000
        for _ in range(20):
            assert engine.run(reads_event_of_child) == 7
        engine.start(sets_events_async_in_sync.options(workflow_id="two"))
        assert engine.run(reads_events_in_branches, "two") == (0, 1)
        assert engine.run(reads_event, "two", "never", 0.02) is None
        engine.send("two", "end")
        engine.get("two").result()
        assert engine.run(catches_missing_event, "two") == "ExecutionEnded SF-0042"
        assert engine.run(catches_missing_event, "missing") == "NotFound SF-0004"


@workflow
def sets_events_async_in_sync() -> None:
    set_event("e0", 0)
    set_event("e1", 1)
    receive()


def test_wrong_events_are_refused(url: str) -> None:
    with Engine(url) as engine:
        with pytest.raises(NotFound):
            engine.get_event("missing", "e")
        with pytest.raises(NotFound):
            engine.events("missing")
        handle = engine.start(sets_one_event.options(workflow_id="a"), 1)
        handle.result()
        with pytest.raises(ExecutionEnded, match="has not set the event .other."):
            handle.get_event("other")
        for name in ("", "a\0b", "x" * 10_000, 3, None):
            for use in (
                lambda name=name: engine.get_event("a", name),
                lambda name=name: handle.get_event(name),
            ):
                with pytest.raises(InvalidArgument, match="event"):
                    use()
        for timeout in (-1, float("nan"), True, "1"):
            with pytest.raises(InvalidArgument, match="timeout"):
                engine.get_event("a", "e", timeout=timeout)  # type: ignore[arg-type]
        set_error, read_error = engine.run(uses_events_in_steps)
        assert "a step returns a value, and its workflow sets the event" in set_error
        assert "engine.get_event" in read_error
        with pytest.raises(EncodeError):
            engine.run(sets_one_event, object())


def test_events_need_a_workflow() -> None:
    for use in (lambda: set_event("e", 1), lambda: get_event("a", "e")):
        with pytest.raises(InvalidArgument, match="outside of the code of a workflow"):
            use()
