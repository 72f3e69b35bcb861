"""Steps whose bodies run in processes, which die in all the ways that processes die."""

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


def checkpoints(url: str) -> list[object]:
    file = url.removeprefix("sqlite:")
    with sqlite3.connect(file) as database:
        found = database.execute("SELECT step_name, outcome FROM checkpoints ORDER BY path").fetchall()
    database.close()
    return found


ORDER = process_steps.Order("order-7", [("tea", 1), ("cup", 2)], {"b", "a", "c"})


@pytest.mark.parametrize("workflow", [process_steps.turns_there, process_steps.turns_there_async])
def test_values_come_back_as_they_are(workflow: Workflow, url: str) -> None:
    wanted = process_steps.turned(ORDER, times=2)
    assert run(url, workflow, ORDER) == wanted
    with Engine(url) as engine:
        handle = engine.start(process_steps.turns_there, ORDER)
        assert handle.result() == wanted


def test_what_is_recorded_does_not_depend_on_where_the_body_runs(tmp_path: pathlib.Path) -> None:
    recorded = []
    for workflow in (process_steps.turns_here, process_steps.turns_there_async):
        url = f"sqlite:{tmp_path}/{workflow.name}.db"
        run(url, workflow, ORDER)
        recorded.append(checkpoints(url))
    assert recorded[0] == recorded[1]
    assert len(recorded[0]) == 1


def test_a_child_is_begun_for_the_first_body_and_kept(tmp_path: pathlib.Path) -> None:
    mine = child_pids()
    with Engine(f"sqlite:{tmp_path}/a.db", max_processes=2) as engine:
        assert child_pids() == mine
        pids = engine.run(process_steps.process_ids, 3)
        assert len(set(pids)) == 1
        assert child_pids() - mine == set(pids)
    assert child_pids() == mine


def test_bodies_run_side_by_side_in_at_most_so_many_processes(tmp_path: pathlib.Path) -> None:
    one, two = tmp_path / "1", tmp_path / "2"
    os.mkfifo(one)
    os.mkfifo(two)
    url = f"sqlite:{tmp_path}/a.db"
    for meeting in (process_steps.meeting, process_steps.meeting_of_threads):
        assert len(set(run(url, meeting, str(one), str(two), max_processes=2))) == 2
    assert 1 <= len(set(run(url, process_steps.fan_out, 12, max_processes=3))) <= 3
    for engine in (Engine(url), Engine(url, max_processes=1)):
        engine.close()
    with pytest.raises(InvalidArgument, match="processes is 0"):
        Engine(url, max_processes=0)


@pytest.mark.parametrize(
    ("how", "code", "says"),
    [
        ("killed", -signal.SIGKILL, "killed by SIGKILL (Killed); unless that was done on purpose"),
        ("segfault", -signal.SIGSEGV, "killed by SIGSEGV (Segmentation fault); it crashed in native code"),
        ("_exit", 3, "ended with exit code 3 before the body had returned"),
        ("exit", 4, "ended with exit code 4 before the body had returned"),
        ("forked", 5, "ended with exit code 5"),
    ],
)
@pytest.mark.parametrize("workflow", [process_steps.dies, process_steps.dies_async])
def test_a_process_that_dies_fails_the_attempt(
    workflow: Workflow, how: str, code: int, says: str, url: str
) -> None:
    said, number, exit_code = run(url, workflow, how)
    assert said.startswith("the process of step 'die' ") and says in said
    assert (number, exit_code) == ("SF-0032", code)


def test_a_process_that_cuts_itself_off_fails_the_attempt(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "CHILD_EXIT_TIMEOUT", 0.1)
    said, _, exit_code = run(f"sqlite:{tmp_path}/a.db", process_steps.dies, "cut off")
    assert "closed its connection" in said and exit_code is None


def test_a_death_is_recorded(url: str) -> None:
    with Engine(url) as engine:
        for _ in range(2):
            with pytest.raises(ProcessDied, match="out-of-memory") as raised:
                engine.run(process_steps.lets_die.options(workflow_id="dead"), "killed")
            assert (raised.value.code, raised.value.exit_code) == ("SF-0032", -9)


def test_a_death_is_followed_by_another_attempt(url: str, tmp_path: pathlib.Path) -> None:
    with Engine(url) as engine:
        assert engine.run(process_steps.tries_in_processes, str(tmp_path / "marks")) == 3
        assert engine.run(process_steps.is_picky, str(tmp_path / "once")) == "died"
        assert (tmp_path / "once").read_text() == "."


def test_a_process_that_is_killed_while_it_waits_is_no_failed_attempt(tmp_path: pathlib.Path) -> None:
    with Engine(f"sqlite:{tmp_path}/a.db", max_processes=1) as engine:
        for _ in range(3):
            [pid] = engine.run(process_steps.process_ids, 1)
            watched = WatchedProcess(pid)
            os.kill(pid, signal.SIGKILL)
            assert watched.wait_for_end()


def test_out_of_memory_is_an_exception_and_the_process_is_not_used_again(tmp_path: pathlib.Path) -> None:
    unlimited = run(f"sqlite:{tmp_path}/a.db", process_steps.runs_out, 1 << 30, max_processes=1)
    assert unlimited == ["MemoryError", -1]


def seen(error: BaseException | None) -> Any:
    """All that there is to an exception."""
    if error is None:
        return None
    kept = [note for note in getattr(error, "__notes__", []) if not note.startswith("In the process")]
    attributes = {name: value for name, value in vars(error).items() if name != "__notes__"}
    return [type(error), str(error), error.args, attributes, kept, seen(error.__cause__)]


@pytest.mark.parametrize("name", [function.__name__ for function in process_steps.FAILING])
def test_errors_are_those_of_other_steps(name: str, url: str) -> None:
    errors = []
    for workflow in (process_steps.fails_here, process_steps.fails_there, process_steps.fails_there_async):
        with pytest.raises(Exception) as raised:
            run(url, workflow, name)
        errors.append(seen(raised.value))
    assert errors[0] == errors[1] == errors[2]
    classes = {
        "decline": process_steps.Declined,
        "decline_locally": RemoteError,
        "decline_strangely": ValueError,
        "return_a_lock": EncodeError,
    }
    assert issubclass(errors[0][0], classes[name])


def test_an_error_says_where_in_the_process_it_was_raised(url: str) -> None:
    with pytest.raises(process_steps.Declined) as raised:
        run(url, process_steps.fails_there, "decline")
    assert raised.value.__notes__[0] == "a note"
    assert raised.value.__notes__[1].startswith("In the process of step 'decline':\n  File ")
    assert "raise declined from error" in raised.value.__notes__[1]


def test_an_argument_that_cannot_go_there_is_an_error(tmp_path: pathlib.Path) -> None:
    mine = child_pids()
    with Engine(f"sqlite:{tmp_path}/a.db") as engine:
        with pytest.raises(EncodeError) as raised:
            engine.run(process_steps.passes_a_lock, "order-7")
        assert str(raised.value).startswith(
            "step 'turned': it runs in a child process, and its arguments must be recordable: argument "
            "'times' cannot be recorded: it is a _thread.lock"
        )
        assert raised.value.path == "argument 'times'"
        assert child_pids() == mine


@pytest.mark.parametrize("workflow", [process_steps.is_impatient, process_steps.is_impatient_async])
def test_an_attempt_that_takes_too_long_is_killed(workflow: Workflow, url: str, pipe: Pipe) -> None:
    outputs: list[object] = []
    thread = threading.Thread(target=lambda: outputs.append(run(url, workflow, pipe.path, max_processes=1)))
    thread.start()
    started, body = pipe.read_process(), pipe.read_process()
    assert body.wait_for_end() and started.wait_for_end()
    thread.join(HANG_TIMEOUT)
    # and its slot was free for another step
    assert outputs == ["the attempt took longer than 0.2 s, True"]


def test_those_that_die_harm_no_other(url: str) -> None:
    wanted = ["ProcessDied" if n % 3 == 0 else n for n in range(20)]
    assert run(url, process_steps.crowd, 20, max_processes=4) == wanted


def test_every_body_comes_to_its_own_end(url: str) -> None:
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
    hows = random.Random(seed).choices(list(ends), weights=[12, 4, 2, 2, 1, 1, 1], k=24)
    wanted = [ends[how].format(n=n) for n, how in enumerate(hows)]
    assert run(url, process_steps.all_act, hows, max_processes=4) == wanted


def test_the_loop_goes_on_while_a_body_runs(url: str, tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "talk")
    assert run(url, process_steps.talks, str(tmp_path / "talk")).strip() == "the loop goes on"


def test_a_sync_workflow_spreads_items_over_processes(url: str) -> None:
    assert run(url, process_steps.spread, 12, max_processes=3) == [n * n for n in range(12)]


def test_a_body_knows_its_execution(url: str) -> None:
    with Engine(url) as engine:
        inside, logged, pid, outside = engine.run(process_steps.asks_where.options(workflow_id="where"))
    assert inside == Current("where", "processes.asks_where", "where_am_i", "1", attempt=1)
    assert (logged, outside) == ("where where_am_i", Current("where", "processes.asks_where"))
    assert pid != os.getpid()


def test_methods_are_steps_too(url: str) -> None:
    mine = os.getpid()
    assert process_steps.shop.times(7) == (21, mine)
    for sells in (process_steps.shop.sells, process_steps.shop.sells_async):
        value, pid = run(url, sells, 7)
        assert value == 21 and pid != mine
    assert run(url, process_steps.shop.calls, 8) == "Shop 8"


def test_calls_in_a_body_are_plain_calls(url: str, tmp_path: pathlib.Path) -> None:
    first, pid, other, third = run(url, process_steps.steps_in_steps, str(tmp_path / "marks"))
    assert (first, third) == (1, 2)
    assert pid == other != os.getpid()


def test_outside_of_workflows_they_are_plain_calls() -> None:
    assert process_steps.process_id() == os.getpid()
    assert asyncio.run(process_steps.process_id.in_process()) == os.getpid()


def test_a_call_that_would_block_the_loop_is_refused(tmp_path: pathlib.Path) -> None:
    url = f"sqlite:{tmp_path}/a.db"
    for workflow in (process_steps.calls_it_as_it_is, process_steps.calls_it_in_a_thread):
        with pytest.raises(InvalidArgument, match=r"write await process_id\.in_process"):
            run(url, workflow)
    with pytest.raises(InvalidArgument, match="call it as it is"):
        run(url, process_steps.calls_it_in_a_process)


def test_a_step_that_another_process_cannot_find_is_refused() -> None:
    def inner() -> None:
        pass

    with pytest.raises(InvalidArgument, match=r"step '.*inner' is defined inside a function"):
        step(process=True)(inner)
    with pytest.raises(InvalidArgument, match="or as a lambda"):
        step(process=True, name="short")(lambda: None)

    async def waits() -> None:
        pass

    with pytest.raises(InvalidArgument, match="process=True is for sync functions"):
        step(process=True)(waits)


@pytest.mark.parametrize("workflow", [process_steps.stays, process_steps.stays_async])
def test_cancelling_kills_the_body(workflow: Workflow, url: str, pipe: Pipe, tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            handle = await engine.start(workflow, pipe.path, str(tmp_path / "marks"))
            body = await asyncio.to_thread(pipe.process)
            await handle.cancel()
            with pytest.raises(WorkflowCancelled):
                await handle
            assert await asyncio.to_thread(body.is_gone)

    asyncio.run(main())
    assert (tmp_path / "marks").read_text() == "."


def test_the_body_that_comes_second_is_killed(url: str, pipe: Pipe, tmp_path: pathlib.Path) -> None:
    other = tmp_path / "other"
    os.mkfifo(other)

    async def main() -> None:
        async with AsyncEngine(url) as engine:
            handle = await engine.start(
                process_steps.first_of_processes, pipe.path, str(tmp_path / "marks"), str(other)
            )
            loser = await asyncio.to_thread(pipe.process)
            await asyncio.to_thread(other.write_text, "first")
            assert await handle == "first"
            assert await asyncio.to_thread(loser.is_gone)

    asyncio.run(main())


def test_a_body_that_is_left_behind_is_killed(url: str, pipe: Pipe, tmp_path: pathlib.Path) -> None:
    other = tmp_path / "other"
    os.mkfifo(other)

    async def main() -> None:
        async with AsyncEngine(url) as engine:
            arguments = pipe.path, str(tmp_path / "marks"), str(other)
            handle = await engine.start(process_steps.leaves_a_body_behind, *arguments)
            left = await asyncio.to_thread(pipe.process)
            await asyncio.to_thread(other.write_text, "fail")
            with pytest.raises(LookupError):
                await handle
            assert await asyncio.to_thread(left.is_gone)

    asyncio.run(main())


def test_an_engine_that_is_closed_ends_bodies_and_they_run_again(
    url: str, pipe: Pipe, tmp_path: pathlib.Path
) -> None:
    marks = str(tmp_path / "marks")
    with Engine(url) as engine:
        engine.start(process_steps.stays.options(workflow_id="stays"), pipe.path, marks)
        body = pipe.read_process()
    assert body.wait_for_end()
    with Engine(url) as engine:
        assert engine.start(process_steps.stays.options(workflow_id="stays"), pipe.path, marks).result() == [
            1,
            2,
        ]


def test_an_async_engine_that_is_closed_ends_bodies_and_they_run_again(
    url: str, pipe: Pipe, tmp_path: pathlib.Path
) -> None:
    marks = str(tmp_path / "marks")

    async def main() -> None:
        async with AsyncEngine(url) as engine:
            await engine.start(process_steps.stays_async.options(workflow_id="stays"), pipe.path, marks)
            body = await asyncio.to_thread(pipe.process)
        assert body.wait_for_end()
        async with AsyncEngine(url) as engine:
            assert (
                await (
                    await engine.start(
                        process_steps.stays_async.options(workflow_id="stays"), pipe.path, marks
                    )
                )
                == 2
            )

    asyncio.run(main())
