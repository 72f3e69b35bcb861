"""Streams: written by workflows and steps, and read by engines, clients, handles and other processes."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from stepfast import (
    AsyncClient,
    AsyncEngine,
    Client,
    EncodeError,
    Engine,
    EngineClosed,
    Graph,
    InvalidArgument,
    NotFound,
    Status,
    StreamValue,
    WorkflowCancelled,
    close_stream,
    current,
    gather,
    receive,
    step,
    workflow,
    write_stream,
)


class Gate:
    """A point at which the body of a step waits for the test."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def pass_through(self) -> None:
        self.reached.set()
        assert self.opened.wait(60)


#: The gates of the running tests, by the workflow_ids of their executions.
gates: dict[str, Gate] = {}


@step
def writes_numbers(count: int) -> int:
    for number in range(count):
        write_stream("numbers", number)
        gate = gates.get(current().workflow_id)
        if number == 0 and gate is not None:
            gate.pass_through()
    return count


@step
async def writes_numbers_async(count: int) -> int:
    for number in range(count):
        await write_stream("numbers", number)
    return count


@workflow
def streams_from_step(count: int) -> int:
    return writes_numbers(count)


@workflow
async def streams_from_async_step(count: int) -> int:
    return await writes_numbers_async(count)


@workflow
async def streams_from_step_in_thread(count: int) -> int:
    return await writes_numbers.in_thread(count)


@step(timeout=60)
def writes_numbers_within_limit(count: int) -> None:
    for number in range(count):
        write_stream("numbers", number)


@step(timeout=60)
async def writes_numbers_within_limit_async(count: int) -> None:
    for number in range(count):
        await write_stream("numbers", number)


@workflow
def streams_within_limit(count: int) -> None:
    writes_numbers_within_limit(count)


@workflow
async def streams_within_limit_async(count: int) -> None:
    await writes_numbers_within_limit_async(count)


@workflow
def streams_from_code(count: int) -> None:
    for number in range(count):
        write_stream("numbers", number)
        receive()


@workflow
async def streams_from_async_code(count: int) -> None:
    for number in range(count):
        await write_stream("numbers", number)
        await receive()


#: The tasks that `writes_from_tasks` has left behind.
left_tasks: list[asyncio.Task[str]] = []


async def write_in_task(value: object) -> None:
    await write_stream("numbers", value)


async def write_late() -> str:
    await asyncio.sleep(0.05)
    with pytest.raises(InvalidArgument) as raised:
        await write_stream("numbers", "late")
    return str(raised.value)


@step
async def writes_from_tasks() -> None:
    await asyncio.gather(*(write_stream("numbers", number) for number in range(5)))
    await asyncio.gather(*(asyncio.create_task(write_in_task(number)) for number in range(5, 10)))
    await asyncio.to_thread(write_stream, "numbers", "thread")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)
    await write_stream("numbers", "after the time limit")
    left_tasks.append(asyncio.create_task(write_late()))


@step
async def awaits_left_task() -> str:
    return await left_tasks.pop()


@workflow
async def streams_from_tasks() -> str:
    await writes_from_tasks()
    return await awaits_left_task()


@step
async def does_not_await() -> None:
    write_stream("numbers", 1)  # type: ignore[unused-coroutine]


@workflow
async def forgets_to_await_write() -> None:
    await does_not_await()


streams_graph = Graph("streams_graph")


@streams_graph.task
def first() -> None:
    write_stream("numbers", "first")


@streams_graph.task(after=[first])
def second() -> None:
    write_stream("numbers", "second")


@workflow
def streams_from_branches() -> None:
    gather(lambda: writes_numbers(3), lambda: writes_numbers(3))


#: The attempts of `fails_twice` that have begun.
attempts: list[int] = []


@step(retries=3, backoff=0)
def fails_twice() -> None:
    attempts.append(len(attempts) + 1)
    write_stream("numbers", 10 * attempts[-1])
    write_stream("numbers", 10 * attempts[-1] + 1)
    if attempts[-1] < 3:
        raise ValueError("again")


@workflow
def streams_from_retries() -> None:
    fails_twice()


@workflow
def closes_its_stream() -> list[str]:
    write_stream("numbers", 1)
    close_stream("numbers")
    receive()
    errors: list[str] = []
    for write in (
        lambda: write_stream("numbers", 2),
        lambda: close_stream("numbers"),
        lambda: writes_numbers(1),
    ):
        with pytest.raises(InvalidArgument) as raised:
            write()
        errors.append(str(raised.value))
    return errors


@workflow
async def closes_its_stream_async() -> None:
    await write_stream("numbers", 1)
    await close_stream("numbers")
    await receive()


@step
def makes_wrong_writes() -> list[str]:
    return wrong_writes(is_step=True)


@workflow
def makes_wrong_writes_everywhere() -> list[list[str]]:
    return [wrong_writes(is_step=False), makes_wrong_writes()]


def wrong_writes(*, is_step: bool) -> list[str]:
    """Returns the errors of writes that no stream accepts."""
    errors: list[str] = []
    for name in ("", "a\0b", "x" * 10_000, 3, None):
        with pytest.raises(InvalidArgument, match="stream"):
            write_stream(name, 1)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="stream"):
            close_stream(name)  # type: ignore[arg-type]
    with pytest.raises(EncodeError):
        write_stream("numbers", object())
    with pytest.raises(InvalidArgument) as raised:
        write_stream("numbers", "x" * 70_000)
    errors.append(str(raised.value))
    if is_step:
        with pytest.raises(InvalidArgument) as raised:
            close_stream("numbers")
        errors.append(str(raised.value))
    return errors


@step(process=True)
def writes_in_a_process() -> str:
    try:
        write_stream("numbers", 1)
    except InvalidArgument as error:
        return str(error)
    return ""


@workflow
def streams_from_a_process() -> str:
    return writes_in_a_process()


#: The errors of threads that write after their attempt.
late_errors: list[str] = []


@step(timeout=1, retries=1, backoff=0)
def is_too_slow() -> None:
    attempt = current().attempt
    write_stream("numbers", attempt)
    if attempt == 1:
        late.pass_through()
        try:
            write_stream("numbers", 100)
        except InvalidArgument as error:
            late_errors.append(str(error))
        late_has_written.set()
    else:
        # the thread of the first attempt writes while this one runs
        late.opened.set()
        assert late_has_written.wait(60)


late, late_has_written = Gate(), threading.Event()


@workflow
def streams_from_late_thread() -> None:
    is_too_slow()


@workflow
def streams_big_values() -> None:
    write_stream("numbers", "é" * 30_000)
    writes_big_value()


@step
def writes_big_value() -> None:
    write_stream("numbers", [None, b"x" * 60_000])


@workflow
def streams_nothing() -> None:
    receive()


def values_of(engine: Client, workflow_id: str, offset: int = 0) -> list[Any]:
    return [it.value for it in engine.read_stream(workflow_id, "numbers", offset=offset)]


def wait_until_suspended(engine: Client, workflow_id: str) -> None:
    while engine.get(workflow_id).status() != Status.WAITING:
        pass


def test_stream_of_a_step_is_read_while_it_grows(url: str) -> None:
    gate = gates["grows"] = Gate()
    with Engine(url) as engine, Client(url) as client, Engine(url) as other:
        handle = engine.start(streams_from_step.options(workflow_id="grows"), 5)
        readers = [
            engine.read_stream("grows", "numbers"),
            handle.read_stream("numbers"),
            client.read_stream("grows", "numbers"),
            other.read_stream("grows", "numbers"),
        ]
        for reader in readers:
            first = next(reader)
            assert isinstance(first, StreamValue)
            assert (first.offset, first.value, first.step, first.attempt_offset) == (0, 0, "1", 0)
            assert first.written_at.tzinfo is not None
        gate.opened.set()
        for reader in readers:
            assert [(it.offset, it.value, it.attempt_offset) for it in reader] == [
                (n, n, 0) for n in range(1, 5)
            ]
            assert list(reader) == []
        assert handle.result(60) == 5
        # the values of a step take no checkpoints
        assert [it.kind for it in engine.show("grows").checkpoints] == ["step"]
        for offset, rest in ((0, [0, 1, 2, 3, 4]), (3, [3, 4]), (5, []), (100, []), (2**63 - 1, [])):
            assert values_of(client, "grows", offset) == rest


def test_stream_is_read_by_another_process(url: str) -> None:
    gate = gates["other-process"] = Gate()
    code = (
        "import sys, stepfast\n"
        "with stepfast.Client(sys.argv[1]) as client:\n"
        "    for value in client.read_stream('other-process', 'numbers'):\n"
        "        print(value.offset, value.value, flush=True)"
    )
    with Engine(url) as engine:
        engine.start(streams_from_step.options(workflow_id="other-process"), 4)
        with subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "0 0\n"
            gate.opened.set()
            assert reader.communicate(timeout=60)[0] == "1 1\n2 2\n3 3\n"
            assert reader.returncode == 0


@pytest.mark.parametrize(
    "target",
    [streams_from_async_step, streams_from_step_in_thread, streams_from_step, streams_within_limit_async],
)
def test_steps_write_in_async_engines(url: str, target: Any) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine, AsyncClient(url) as client:
            handle = await engine.start(target.options(workflow_id="a"), 300)
            for reader in (
                engine.read_stream("a", "numbers"),
                client.read_stream("a", "numbers"),
                handle.read_stream("numbers"),
            ):
                values = [it async for it in reader]
                assert [it.value for it in values] == list(range(300))
                assert {(it.step, it.attempt_offset) for it in values} == {("1", 0)}
            assert [it.value async for it in client.read_stream("a", "numbers", offset=298)] == [298, 299]
            await handle

    asyncio.run(main())


def test_sync_steps_with_limits_write(url: str) -> None:
    with Engine(url) as engine:
        engine.run(streams_within_limit.options(workflow_id="a"), 20)
        assert values_of(engine, "a") == list(range(20))
        # the caller of `run` runs the body, too
        engine.run(streams_from_step.options(workflow_id="b"), 20)
        assert values_of(engine, "b") == list(range(20))


def test_graceful_iteration_stops_and_continues(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            await engine.run(streams_from_async_step.options(workflow_id="a"), 10)
            seen: list[int] = []
            async for it in engine.read_stream("a", "numbers"):
                seen.append(it.value)
                if it.offset == 3:
                    break
            seen += [it.value async for it in engine.read_stream("a", "numbers", offset=4)]
            assert seen == list(range(10))
            await engine.start(streams_nothing.options(workflow_id="b"))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    async for _ in engine.read_stream("b", "numbers"):
                        pass
            await engine.cancel("b")
            assert [it async for it in engine.read_stream("b", "numbers")] == []

    asyncio.run(main())


def test_body_writes_from_its_tasks_and_threads(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            handle = await engine.start(streams_from_tasks)
            error = await handle
            values = [it async for it in handle.read_stream("numbers")]
            assert sorted(it.value for it in values[:10]) == list(range(10))
            assert [it.value for it in values[10:]] == ["thread", "after the time limit"]
            assert {(it.step, it.attempt_offset) for it in values} == {("1", 0)}
            assert "after attempt 1 of step" in error and "has ended" in error

    asyncio.run(main())


def test_tasks_of_graphs_write(url: str) -> None:
    with Engine(url) as engine:
        handle = engine.start(streams_graph)
        handle.result(60)
        values = list(handle.read_stream("numbers"))
        assert [it.value for it in values] == ["first", "second"]
        assert [it.attempt_offset for it in values] == [0, 1]
        assert None not in {it.step for it in values} and values[0].step != values[1].step


def test_forgotten_await_is_warned_about(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            handle = await engine.start(forgets_to_await_write)
            with pytest.warns(RuntimeWarning, match="write_stream was called, and never awaited"):
                await handle
            assert [it async for it in handle.read_stream("numbers")] == []

    asyncio.run(main())


@pytest.mark.parametrize("target", [streams_from_code, streams_from_async_code])
def test_replay_writes_nothing_again(url: str, target: Any) -> None:
    async def main() -> None:
        async with AsyncEngine(url, suspend_after=0.01) as engine:
            handle = await engine.start(target.options(workflow_id="a"), 3)
            for _ in range(3):
                while await handle.status() != Status.WAITING:
                    pass
                await handle.send(None)
            await handle
            values = [it async for it in handle.read_stream("numbers")]
            assert [(it.offset, it.value, it.step, it.attempt_offset) for it in values] == [
                (n, n, None, n) for n in range(3)
            ]
            checkpoints = (await engine.show("a")).checkpoints
            assert [it.kind for it in checkpoints] == ["stream write", "message"] * 3
            assert {(it.name, it.value) for it in checkpoints[::2]} == {("numbers", None)}

    asyncio.run(main())


def test_retries_are_told_apart(url: str) -> None:
    attempts.clear()
    with Engine(url) as engine:
        engine.run(streams_from_retries.options(workflow_id="a"))
        values = list(engine.read_stream("a", "numbers"))
        assert [(it.value, it.attempt_offset) for it in values] == [
            (10, 0),
            (11, 0),
            (20, 2),
            (21, 2),
            (30, 4),
            (31, 4),
        ]
        # a reader keeps the values of the last attempt
        kept: dict[str | None, list[StreamValue]] = {}
        for it in values:
            same = kept.setdefault(it.step, [])
            if same and same[0].attempt_offset != it.attempt_offset:
                same.clear()
            same.append(it)
        assert [it.value for it in kept["1"]] == [30, 31]


def test_parallel_steps_write_to_one_stream(url: str) -> None:
    with Engine(url) as engine:
        engine.run(streams_from_branches.options(workflow_id="a"))
        values = list(engine.read_stream("a", "numbers"))
        assert [it.offset for it in values] == list(range(6))
        by_step: dict[str | None, list[int]] = {}
        for it in values:
            by_step.setdefault(it.step, []).append(it.value)
        assert list(by_step.values()) == [[0, 1, 2]] * 2


def test_closed_stream_ends_before_the_execution(url: str) -> None:
    with Engine(url, suspend_after=0.01) as engine, Client(url) as client:
        handle = engine.start(closes_its_stream.options(workflow_id="a"))
        assert values_of(engine, "a") == values_of(client, "a") == [1]
        wait_until_suspended(engine, "a")
        assert values_of(client, "a", 1) == values_of(client, "a", 100) == []
        handle.send(None)
        errors = handle.result(60)
        assert len(errors) == 3 and all('"numbers" is closed' in error for error in errors)

    async def main() -> None:
        async with AsyncEngine(url) as engine:
            handle = await engine.start(closes_its_stream_async)
            assert [it.value async for it in handle.read_stream("numbers")] == [1]
            await handle.send(None)
            await handle

    asyncio.run(main())


def test_wrong_writes_are_refused(url: str) -> None:
    with Engine(url) as engine:
        in_code, in_step = engine.run(makes_wrong_writes_everywhere)
        for errors in (in_code, in_step):
            assert "70006 bytes, and the limit is 65536" in errors[0] or "the limit is 65536" in errors[0]
        assert "close the stream in the workflow, after the step" in in_step[1]
        message = engine.run(streams_from_a_process)
        assert "runs in a process: return the values" in message and "without process=True" in message
    for use in (lambda: write_stream("a", 1), lambda: close_stream("a")):
        with pytest.raises(InvalidArgument, match="is called outside of"):
            use()


def test_late_thread_writes_nothing(url: str) -> None:
    late_errors.clear()
    late.opened.clear()
    late_has_written.clear()
    with Engine(url) as engine:
        engine.run(streams_from_late_thread.options(workflow_id="a"))
        assert values_of(engine, "a") == [1, 2]
        assert late_errors[0].startswith("write_stream is called after attempt 1 of step")


def test_big_values_are_written(url: str) -> None:
    with Engine(url) as engine:
        engine.run(streams_big_values.options(workflow_id="a"))
        assert values_of(engine, "a") == ["é" * 30_000, [None, b"x" * 60_000]]


def test_wrong_reads_are_refused(url: str) -> None:
    with Engine(url) as engine:
        handle = engine.start(streams_nothing.options(workflow_id="a"))
        reads: Any = (
            lambda stream="s", **options: engine.read_stream("a", stream, **options),
            lambda stream="s", **options: handle.read_stream(stream, **options),
        )
        for read in reads:
            for offset in (-1, 1.5, True, "1", None, 2**63):
                with pytest.raises(InvalidArgument, match="offset is "):
                    read(offset=offset)
            for stream in ("", "a\0b", "x" * 10_000, 3, None):
                with pytest.raises(InvalidArgument, match="stream"):
                    read(stream)
        with pytest.raises(NotFound):
            next(engine.read_stream("missing", "s"))
        handle.cancel()
        assert list(handle.read_stream("s")) == []
        with pytest.raises(WorkflowCancelled):
            handle.result(60)
        left = handle.read_stream("s")
    with pytest.raises(EngineClosed):
        next(left)


def test_interrupt_ends_a_waiting_iteration(url: str) -> None:
    code = (
        "import sys, stepfast\n"
        "with stepfast.Client(sys.argv[1]) as client:\n"
        "    print('reads', flush=True)\n"
        "    try:\n"
        "        for value in client.read_stream('a', 'numbers'): print(value.value, flush=True)\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted', flush=True)"
    )
    with Engine(url, suspend_after=0.01) as engine:
        handle = engine.start(closes_nothing.options(workflow_id="a"))
        with subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "reads\n"
            assert reader.stdout.readline() == "1\n"
            reader.send_signal(signal.SIGINT)
            assert reader.communicate(timeout=60)[0] == "interrupted\n"
            assert reader.returncode == 0
        handle.send(None)
        handle.result(60)


@workflow
def closes_nothing() -> None:
    write_stream("numbers", 1)
    receive()


#: Set when the body of `writes_forever` has begun to write.
is_writing = threading.Event()


@step
def writes_forever() -> None:
    while True:
        write_stream("numbers", 1)
        is_writing.set()


@workflow
def streams_forever() -> None:
    writes_forever()


@step
async def writes_forever_async() -> None:
    while True:
        await write_stream("numbers", 1)
        is_writing.set()
        await asyncio.sleep(0)


@workflow
async def streams_forever_async() -> None:
    await writes_forever_async()


def test_cancelled_execution_ends_its_writing_step(url: str) -> None:
    is_writing.clear()
    with Engine(url) as engine:
        handle = engine.start(streams_forever)
        assert is_writing.wait(60)
        handle.cancel()
        with pytest.raises(WorkflowCancelled):
            handle.result(60)


def test_closed_engine_ends_its_writing_steps(url: str) -> None:
    is_writing.clear()
    with Engine(url) as engine:
        engine.start(streams_forever.options(workflow_id="a"))
        assert is_writing.wait(60)
        # the close does not hang
    with Client(url) as client:
        assert client.get("a").status() == Status.QUEUED
        client.cancel("a")

    async def main() -> None:
        is_writing.clear()
        async with AsyncEngine(url) as engine:
            await engine.start(streams_forever_async.options(workflow_id="b"))
            while not is_writing.is_set():
                await asyncio.sleep(0.01)
        async with AsyncClient(url) as client:
            assert await (await client.get("b")).status() == Status.QUEUED

    asyncio.run(main())
