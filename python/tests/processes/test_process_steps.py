"""Steps whose bodies run in processes: values, errors, deaths of processes, time limits and cancels."""

import asyncio
import os
import pathlib
import random
import signal
import sqlite3
import threading
from typing import Any

import process_steps
import pytest
from watched_process import HANG_TIMEOUT, Pipe, WatchedProcess, child_pids

from stepfast import (
    AsyncEngine,
    Current,
    Engine,
    InvalidArgument,
    ProcessDied,
    Workflow,
    WorkflowCancelled,
    step,
)
from stepfast._processes import child
from stepfast.values import EncodeError, RemoteError


@pytest.fixture
def pipe(tmp_path: pathlib.Path) -> Pipe:
    return Pipe(tmp_path / "pipe")


def run(url: str, workflow: Workflow, *args: object, **options: int) -> object:
    """Runs a sync or an async workflow."""
    if not getattr(workflow, "workflow", workflow).is_async:
        with Engine(url, **options) as engine:
            return engine.run(workflow, *args)

    async def main() -> object:
        async with AsyncEngine(url, **options) as engine:
            return await engine.run(workflow, *args)

    return asyncio.run(main())


def read_checkpoints(url: str) -> list[object]:
    file = url.removeprefix("sqlite:")
    with sqlite3.connect(file) as database:
        rows = database.execute("SELECT step_name, outcome FROM checkpoints ORDER BY path").fetchall()
    database.close()
    return rows


ORDER = process_steps.Order("order-7", [("tea", 1), ("cup", 2)], {"b", "a", "c"})


@pytest.mark.parametrize(
    "workflow", [process_steps.reverses_in_process, process_steps.reverses_in_process_async]
)
def test_values_cross_process_boundary_unchanged(workflow: Workflow, url: str) -> None:
    expected = process_steps.reverse_order(ORDER, times=2)
    assert run(url, workflow, ORDER) == expected
    with Engine(url) as engine:
        handle = engine.start(process_steps.reverses_in_process, ORDER)
        assert handle.result() == expected


def test_record_is_same_for_body_in_thread_and_process(tmp_path: pathlib.Path) -> None:
    records = []
    for workflow in (process_steps.reverses_in_thread, process_steps.reverses_in_process_async):
        url = f"sqlite:{tmp_path}/{workflow.name}.db"
        run(url, workflow, ORDER)
        records.append(read_checkpoints(url))
    assert records[0] == records[1]
    assert len(records[0]) == 1


def test_child_starts_with_first_body_and_is_reused(tmp_path: pathlib.Path) -> None:
    other_pids = child_pids()
    with Engine(f"sqlite:{tmp_path}/a.db", max_processes=2) as engine:
        assert child_pids() == other_pids
        pids = engine.run(process_steps.process_ids, 3)
        assert len(set(pids)) == 1
        assert child_pids() - other_pids == set(pids)
    assert child_pids() == other_pids


def test_bodies_run_concurrently_in_limited_processes(tmp_path: pathlib.Path) -> None:
    one, two = tmp_path / "1", tmp_path / "2"
    os.mkfifo(one)
    os.mkfifo(two)
    url = f"sqlite:{tmp_path}/a.db"
    for workflow in (process_steps.meets, process_steps.meets_in_threads):
        assert len(set(run(url, workflow, str(one), str(two), max_processes=2))) == 2
    assert 1 <= len(set(run(url, process_steps.gathers_process_ids, 12, max_processes=3))) <= 3
    for engine in (Engine(url), Engine(url, max_processes=1)):
        engine.close()
    with pytest.raises(InvalidArgument, match="processes is 0"):
        Engine(url, max_processes=0)


@pytest.mark.parametrize(
    ("way", "code", "expected_message"),
    [
        ("killed", -signal.SIGKILL, "killed by SIGKILL (Killed); unless that was done on purpose"),
        ("segfault", -signal.SIGSEGV, "killed by SIGSEGV (Segmentation fault); it crashed in native code"),
        ("_exit", 3, "ended with exit code 3 before the body had returned"),
        ("exit", 4, "ended with exit code 4 before the body had returned"),
        ("forked", 5, "ended with exit code 5"),
    ],
)
@pytest.mark.parametrize("workflow", [process_steps.dies, process_steps.dies_async])
def test_death_of_process_fails_attempt(
    workflow: Workflow, way: str, code: int, expected_message: str, url: str
) -> None:
    message, error_code, exit_code = run(url, workflow, way)
    assert message.startswith("the process of step 'die' ") and expected_message in message
    assert (error_code, exit_code) == ("SF-0032", code)


def test_process_that_closes_its_connection_fails_attempt(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "CHILD_EXIT_TIMEOUT", 0.1)
    message, _, exit_code = run(f"sqlite:{tmp_path}/a.db", process_steps.dies, "cut off")
    assert "closed its connection" in message and exit_code is None


def test_death_of_process_is_recorded(url: str) -> None:
    with Engine(url) as engine:
        for _ in range(2):
            with pytest.raises(ProcessDied, match="out-of-memory") as raised:
                engine.run(process_steps.lets_die.options(workflow_id="dead"), "killed")
            assert (raised.value.code, raised.value.exit_code) == ("SF-0032", -9)


def test_step_is_retried_after_death_of_process(url: str, tmp_path: pathlib.Path) -> None:
    with Engine(url) as engine:
        assert engine.run(process_steps.tries_in_processes, str(tmp_path / "marks")) == 3
        assert engine.run(process_steps.dies_without_retry, str(tmp_path / "once")) == "died"
        assert (tmp_path / "once").read_text() == "."


def test_death_of_idle_process_fails_no_attempt(tmp_path: pathlib.Path) -> None:
    with Engine(f"sqlite:{tmp_path}/a.db", max_processes=1) as engine:
        for _ in range(3):
            [pid] = engine.run(process_steps.process_ids, 1)
            process = WatchedProcess(pid)
            os.kill(pid, signal.SIGKILL)
            assert process.wait_for_end()


def test_process_is_replaced_after_memory_error(tmp_path: pathlib.Path) -> None:
    results = run(f"sqlite:{tmp_path}/a.db", process_steps.exceeds_memory_limit, 1 << 30, max_processes=1)
    assert results == ["MemoryError", -1]


def describe(error: BaseException | None) -> Any:
    """Returns all observable properties of an exception."""
    if error is None:
        return None
    notes = [note for note in getattr(error, "__notes__", []) if not note.startswith("In the process")]
    attributes = {name: value for name, value in vars(error).items() if name != "__notes__"}
    return [type(error), str(error), error.args, attributes, notes, describe(error.__cause__)]


@pytest.mark.parametrize("name", [function.__name__ for function in process_steps.FAILING_BODIES])
def test_body_in_process_raises_same_errors_as_in_thread(name: str, url: str) -> None:
    errors = []
    for workflow in (
        process_steps.fails_in_thread,
        process_steps.fails_in_process,
        process_steps.fails_in_process_async,
    ):
        with pytest.raises(Exception) as raised:
            run(url, workflow, name)
        errors.append(describe(raised.value))
    assert errors[0] == errors[1] == errors[2]
    classes = {
        "decline": process_steps.Declined,
        "decline_locally": RemoteError,
        "decline_with_surrogate": ValueError,
        "return_lock": EncodeError,
    }
    assert issubclass(errors[0][0], classes[name])


def test_error_notes_contain_traceback_of_process(url: str) -> None:
    with pytest.raises(process_steps.Declined) as raised:
        run(url, process_steps.fails_in_process, "decline")
    assert raised.value.__notes__[0] == "a note"
    assert raised.value.__notes__[1].startswith("In the process of step 'decline':\n  File ")
    assert "raise declined from error" in raised.value.__notes__[1]


def test_unrecordable_argument_is_refused_without_child(tmp_path: pathlib.Path) -> None:
    other_pids = child_pids()
    with Engine(f"sqlite:{tmp_path}/a.db") as engine:
        with pytest.raises(EncodeError) as raised:
            engine.run(process_steps.passes_lock, "order-7")
        assert str(raised.value).startswith(
            "step 'reverse_order': it runs in a child process, and its arguments must be recordable: "
            "argument 'times' cannot be recorded: its type is _thread.lock"
        )
        assert raised.value.path == "argument 'times'"
        assert child_pids() == other_pids


@pytest.mark.parametrize("workflow", [process_steps.times_out, process_steps.times_out_async])
def test_attempt_is_killed_at_its_time_limit(workflow: Workflow, url: str, pipe: Pipe) -> None:
    outputs: list[object] = []
    thread = threading.Thread(target=lambda: outputs.append(run(url, workflow, pipe.path, max_processes=1)))
    thread.start()
    grandchild, body = pipe.read_process(), pipe.read_process()
    assert body.wait_for_end() and grandchild.wait_for_end()
    thread.join(HANG_TIMEOUT)
    # the workflow ran another step in the only slot
    assert outputs == ["the attempt took longer than 0.2 s, True"]


def test_deaths_of_processes_affect_no_other_body(url: str) -> None:
    expected = ["ProcessDied" if n % 3 == 0 else n for n in range(20)]
    assert run(url, process_steps.gathers_deaths, 20, max_processes=4) == expected


def test_concurrent_bodies_have_different_ends(url: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    ends = {
        "return": "{n} returned {n}",
        "raise": "{n} raised {n}",
        "hang": "{n} was late",
        "killed": "{n} ended by -9",
        "segfault": "{n} ended by -11",
        "_exit": "{n} ended by 3",
        "exit": "{n} ended by 4",
    }
    ways = random.Random(seed).choices(list(ends), weights=[12, 4, 2, 2, 1, 1, 1], k=24)
    expected = [ends[way].format(n=n) for n, way in enumerate(ways)]
    assert run(url, process_steps.gathers_ends, ways, max_processes=4) == expected


def test_loop_runs_while_body_runs_in_process(url: str, tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "talk")
    assert run(url, process_steps.writes_while_body_reads, str(tmp_path / "talk")).strip() == "the loop runs"


def test_sync_workflow_maps_items_over_processes(url: str) -> None:
    assert run(url, process_steps.maps_squares, 12, max_processes=3) == [n * n for n in range(12)]


def test_body_in_process_reads_its_execution(url: str) -> None:
    with Engine(url) as engine:
        inside, log_text, pid, outside = engine.run(process_steps.locates.options(workflow_id="where"))
    assert inside == Current("where", "processes.locates", "locate", "1", attempt=1)
    assert (log_text, outside) == ("where locate", Current("where", "processes.locates"))
    assert pid != os.getpid()


def test_methods_run_as_process_steps(url: str) -> None:
    main_pid = os.getpid()
    assert process_steps.shop.times(7) == (21, main_pid)
    for sells in (process_steps.shop.sells, process_steps.shop.sells_async):
        value, pid = run(url, sells, 7)
        assert value == 21 and pid != main_pid
    assert run(url, process_steps.shop.calls, 8) == "Shop 8"


def test_calls_in_body_are_plain_calls(url: str, tmp_path: pathlib.Path) -> None:
    first_count, pid, other_pid, second_count = run(
        url, process_steps.calls_steps_in_body, str(tmp_path / "marks")
    )
    assert (first_count, second_count) == (1, 2)
    assert pid == other_pid != os.getpid()


def test_process_step_outside_of_workflow_is_plain_call() -> None:
    assert process_steps.process_id() == os.getpid()
    assert asyncio.run(process_steps.process_id.in_process()) == os.getpid()


def test_call_that_would_block_loop_is_refused(tmp_path: pathlib.Path) -> None:
    url = f"sqlite:{tmp_path}/a.db"
    for workflow in (process_steps.calls_process_step_on_loop, process_steps.calls_process_step_in_thread):
        with pytest.raises(InvalidArgument, match=r"write await process_id\.in_process"):
            run(url, workflow)
    with pytest.raises(InvalidArgument, match="call it without in_process"):
        run(url, process_steps.calls_in_process_from_sync_code)


def test_step_without_importable_function_is_refused() -> None:
    def inner() -> None:
        pass

    with pytest.raises(InvalidArgument, match=r"step '.*inner' is defined inside a function"):
        step(process=True)(inner)
    with pytest.raises(InvalidArgument, match="or as a lambda"):
        step(process=True, name="lambda")(lambda: None)

    async def inner_async() -> None:
        pass

    with pytest.raises(InvalidArgument, match="process=True is for sync functions"):
        step(process=True)(inner_async)


@pytest.mark.parametrize("workflow", [process_steps.stays, process_steps.stays_async])
def test_cancel_kills_body_in_process(
    workflow: Workflow, url: str, pipe: Pipe, tmp_path: pathlib.Path
) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            handle = await engine.start(workflow, pipe.path, str(tmp_path / "marks"))
            body = await asyncio.to_thread(pipe.read_process)
            await handle.cancel()
            with pytest.raises(WorkflowCancelled):
                await handle
            assert await asyncio.to_thread(body.wait_for_end)

    asyncio.run(main())
    assert (tmp_path / "marks").read_text() == "."


def test_cancelled_slower_body_is_killed(url: str, pipe: Pipe, tmp_path: pathlib.Path) -> None:
    other = tmp_path / "other"
    os.mkfifo(other)

    async def main() -> None:
        async with AsyncEngine(url) as engine:
            handle = await engine.start(
                process_steps.cancels_slower_step, pipe.path, str(tmp_path / "marks"), str(other)
            )
            loser = await asyncio.to_thread(pipe.read_process)
            await asyncio.to_thread(other.write_text, "first")
            assert await handle == "first"
            assert await asyncio.to_thread(loser.wait_for_end)

    asyncio.run(main())


def test_body_of_loser_is_killed(url: str, pipe: Pipe, tmp_path: pathlib.Path) -> None:
    with Engine(url) as engine:
        handle = engine.start(process_steps.races_process, pipe.path, str(tmp_path / "marks"))
        loser = pipe.read_process()
        handle.send("gone", topic="go")
        assert handle.result() == (1, "gone")
        assert loser.wait_for_end()


def test_body_of_failed_workflow_is_killed(url: str, pipe: Pipe, tmp_path: pathlib.Path) -> None:
    other = tmp_path / "other"
    os.mkfifo(other)

    async def main() -> None:
        async with AsyncEngine(url) as engine:
            arguments = pipe.path, str(tmp_path / "marks"), str(other)
            handle = await engine.start(process_steps.abandons_body, *arguments)
            abandoned_body = await asyncio.to_thread(pipe.read_process)
            await asyncio.to_thread(other.write_text, "fail")
            with pytest.raises(LookupError):
                await handle
            assert await asyncio.to_thread(abandoned_body.wait_for_end)

    asyncio.run(main())


def test_body_runs_again_after_close_of_engine(url: str, pipe: Pipe, tmp_path: pathlib.Path) -> None:
    marks = str(tmp_path / "marks")
    with Engine(url) as engine:
        engine.start(process_steps.stays.options(workflow_id="stays"), pipe.path, marks)
        body = pipe.read_process()
    assert body.wait_for_end()
    with Engine(url) as engine:
        handle = engine.start(process_steps.stays.options(workflow_id="stays"), pipe.path, marks)
        assert handle.result() == [1, 2]


def test_body_runs_again_after_close_of_async_engine(url: str, pipe: Pipe, tmp_path: pathlib.Path) -> None:
    marks = str(tmp_path / "marks")

    async def main() -> None:
        async with AsyncEngine(url) as engine:
            await engine.start(process_steps.stays_async.options(workflow_id="stays"), pipe.path, marks)
            body = await asyncio.to_thread(pipe.read_process)
        assert body.wait_for_end()
        async with AsyncEngine(url) as engine:
            handle = await engine.start(
                process_steps.stays_async.options(workflow_id="stays"), pipe.path, marks
            )
            assert await handle == 2

    asyncio.run(main())
