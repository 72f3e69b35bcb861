"""Async workflows in all shapes of asyncio: run, started, and continued after crashes."""

import asyncio
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading

import asyncio_program
import pytest
from repository import PROGRAMS

from stepfast import AsyncEngine, Engine, InvalidArgument, Workflow, WorkflowCancelled, sleep, step, workflow

ALL_SHAPES = [*asyncio_program.SINGLE_SHAPES, *asyncio_program.PAIR_SHAPES, asyncio_program.nests_gathers]
PROGRAM = PROGRAMS / "asyncio_program.py"


@pytest.mark.parametrize("program", ALL_SHAPES, ids=lambda program: program.name)
@pytest.mark.parametrize("suspend_after", [5.0, 0.001])
def test_shape_returns_its_expected_output(program: Workflow, suspend_after: float, url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url, suspend_after=suspend_after) as engine:
            expected = asyncio_program.expected_output(program.name)
            assert await engine.run(program, asyncio_program.ITEM_COUNT) == expected
            handle = await engine.start(program, asyncio_program.ITEM_COUNT)
            assert await handle == expected

    asyncio.run(main())


def test_executions_continue_after_kills(url: str) -> None:
    """Step bodies kill the process at random. The test starts it again until all executions have ended."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    kill_count = 0
    # on Postgres the takeover of a dead worker waits for its lease
    kill_probability = "0.02" if url.startswith("sqlite") else "0.004"
    for program_no in range(200):
        environment = {**os.environ, "KILL_PROBABILITY": kill_probability, "SEED": str(seed + program_no)}
        program = subprocess.run(
            [sys.executable, str(PROGRAM), url, "3"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        if program.returncode == 0:
            break
        assert program.returncode == -signal.SIGKILL, program.stderr
        kill_count += 1
    else:
        pytest.fail("the program has not ended after 200 kills")
    print(f"{kill_count} kills")
    assert kill_count > 0 or not url.startswith("sqlite")


@step
async def raises_no_such_order(n: int) -> int:
    raise LookupError("no such order", n)


@workflow
async def raises_error_of_step(n: int) -> int:
    return await raises_no_such_order(n)


@workflow
async def catches_error_of_step(n: int) -> list[object]:
    try:
        return [await raises_no_such_order(n)]
    except LookupError as error:
        return [error.args[0], error.args[1]]


def test_errors_keep_their_class(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            for _ in range(2):
                with pytest.raises(LookupError) as raised:
                    await engine.run(raises_error_of_step, 7)
                assert raised.value.args == ("no such order", 7)
                handle = await engine.start(raises_error_of_step, 8)
                with pytest.raises(LookupError) as raised:
                    await handle
                assert raised.value.args == ("no such order", 8)
            assert await engine.run(catches_error_of_step, 9) == ["no such order", 9]

    asyncio.run(main())


@workflow
async def abandons_sleeping_branch(n: int) -> list[object]:
    return await asyncio.gather(sleep(3600), raises_no_such_order(n))


def test_abandoned_branches_unwind_at_the_end(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            for execution in (
                engine.run(abandons_sleeping_branch, 7),
                await engine.start(abandons_sleeping_branch, 8),
            ):
                with pytest.raises(LookupError):
                    await execution
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            # the engine's own task continues
            remaining = {task for task in tasks if task.get_name() != "stepfast"}
            if remaining:
                _, pending = await asyncio.wait(remaining, timeout=60)
                assert not pending

    asyncio.run(main())


_attempts: list[int] = []


@step(retries=3, backoff=0.001)
async def succeeds_at_third_attempt(n: int) -> int:
    _attempts.append(n)
    if len(_attempts) < 3:
        raise ConnectionError("not yet")
    return n


@workflow
async def calls_retried_step(n: int) -> int:
    return await succeeds_at_third_attempt(n)


def test_failed_attempts_are_retried(url: str) -> None:
    async def main() -> None:
        _attempts.clear()
        async with AsyncEngine(url) as engine:
            assert await engine.run(calls_retried_step, 5) == 5
        assert _attempts == [5, 5, 5]

    asyncio.run(main())


@workflow
async def sleeps_and_returns(seconds: float) -> str:
    await sleep(seconds)
    return "awake"


def test_sleeping_executions_are_suspended_and_woken(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url, suspend_after=0.01) as engine:
            handles = [await engine.start(sleeps_and_returns, 0.05) for _ in range(50)]
            assert [await handle for handle in handles] == ["awake"] * 50
            assert await engine.run(sleeps_and_returns, 0.05) == "awake"

    asyncio.run(main())


def test_workflow_id_is_started_once(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            handles = await asyncio.gather(
                *[
                    engine.start(asyncio_program.calls_in_sequence.options(workflow_id="once"), 3)
                    for _ in range(20)
                ]
            )
            assert {handle.workflow_id for handle in handles} == {"once"}
            outputs = [await handle for handle in handles]
            assert outputs == [[[i, 2 * i] for i in range(3)]] * 20

    asyncio.run(main())


_body_inputs: list[int] = []


@step
async def returns_slowly(n: int) -> int:
    _body_inputs.append(n)
    await asyncio.sleep(0.02)
    return n


@workflow
async def calls_slow_steps(n: int) -> list[int]:
    try:
        return [await returns_slowly(i) for i in range(n)]
    finally:
        # a durable call of unwinding code must not be recorded
        await returns_slowly(100)


def test_cancelled_caller_does_not_cancel_its_execution(url: str) -> None:
    async def main() -> None:
        _body_inputs.clear()
        async with AsyncEngine(url) as engine:
            caller = asyncio.create_task(engine.run(calls_slow_steps.options(workflow_id="slow"), 5))
            while _body_inputs[-1:] != [2]:
                await asyncio.sleep(0)
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
            handle = await engine.start(calls_slow_steps.options(workflow_id="slow"), 5)
            assert await handle == [0, 1, 2, 3, 4]
        # the interrupted step ran again, the others did not
        assert _body_inputs == [0, 1, 2, 2, 3, 4, 100]

    asyncio.run(main())


@workflow
async def calls_children(n: int) -> list[list[list[int]]]:
    first = await asyncio_program.calls_in_sequence(n)
    others = await asyncio.gather(*[asyncio_program.gathers_calls(n) for _ in range(3)])
    return [first, *others]


@workflow
async def catches_error_of_child(n: int) -> str:
    try:
        await raises_error_of_step(n)
    except LookupError as error:
        return f"caught {error.args}"
    return "not caught"


def test_workflow_called_by_a_workflow_is_a_child(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url, suspend_after=0.01) as engine:
            expected = [[[i, 2 * i] for i in range(3)]] * 4
            assert await engine.run(calls_children, 3) == expected
            assert await (await engine.start(calls_children, 3)) == expected
            assert await engine.run(catches_error_of_child, 3) == "caught ('no such order', 3)"

    asyncio.run(main())


@workflow
async def calls_endless_step(n: int) -> int:
    await waits_endlessly(n)
    return n


@step
async def waits_endlessly(n: int) -> int:
    _body_inputs.append(n)
    await asyncio.Event().wait()
    return n


def test_cancelled_execution_ends_its_tasks(url: str) -> None:
    async def main() -> None:
        _body_inputs.clear()
        async with AsyncEngine(url) as engine:
            handle = await engine.start(calls_endless_step, 1)
            while not _body_inputs:
                await asyncio.sleep(0)
            before = len(asyncio.all_tasks())
            await handle.cancel()
            with pytest.raises(WorkflowCancelled):
                await handle
            assert await handle.status() == "cancelled"
            while len(asyncio.all_tasks()) >= before:
                await asyncio.sleep(0)

    asyncio.run(main())


def test_two_engines_share_one_loop(tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        async with AsyncEngine(f"sqlite:{tmp_path}/a.db") as a, AsyncEngine(f"sqlite:{tmp_path}/b.db") as b:
            handles = [
                await engine.start(asyncio_program.runs_worker_pool, asyncio_program.ITEM_COUNT)
                for engine in (a, b)
                for _ in range(5)
            ]
            for handle in handles:
                assert await handle == asyncio_program.expected_output("runs_worker_pool")

    asyncio.run(main())


def test_closed_engine_requeues_its_executions(tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        url = f"sqlite:{tmp_path}/a.db"
        _body_inputs.clear()
        async with AsyncEngine(url) as engine:
            await engine.start(calls_slow_steps.options(workflow_id="slow"), 5)
            while _body_inputs[-1:] != [1]:
                await asyncio.sleep(0)
        async with AsyncEngine(url) as engine:
            handle = await engine.start(calls_slow_steps.options(workflow_id="slow"), 5)
            assert await handle == [0, 1, 2, 3, 4]
        assert _body_inputs.count(0) == 1

    asyncio.run(main())


@step(timeout=0.02, retries=1, backoff=0.001)
async def sleeps_with_timeout(n: int) -> int:
    _body_inputs.append(n)
    await asyncio.sleep(n)
    return n


@workflow
async def returns_message_of_timeout(n: int) -> str:
    try:
        await sleeps_with_timeout(n)
    except TimeoutError as error:
        return str(error)
    return "in time"


def test_attempt_fails_after_its_timeout(url: str) -> None:
    async def main() -> None:
        _body_inputs.clear()
        async with AsyncEngine(url) as engine:
            assert await engine.run(returns_message_of_timeout, 0) == "in time"
            for execution in (
                engine.run(returns_message_of_timeout, 60),
                await engine.start(returns_message_of_timeout, 60),
            ):
                assert await execution == "the attempt took longer than 0.02 s"
        assert _body_inputs == [0, 60, 60, 60, 60]

    asyncio.run(main())


@step
def checks_its_thread(n: int) -> list[object]:
    return [n, threading.current_thread() is not threading.main_thread()]


@workflow
async def calls_step_in_thread(n: int) -> list[object]:
    return await checks_its_thread.in_thread(n)


@workflow
async def calls_sync_step_on_loop(n: int) -> list[object]:
    return checks_its_thread(n)


@workflow
def checks_its_thread_as_child(n: int) -> list[object]:
    return checks_its_thread(n)


@workflow
async def calls_child_in_thread(n: int) -> list[object]:
    return await checks_its_thread_as_child.in_thread(n)


@workflow
async def calls_sync_child_on_loop(n: int) -> list[object]:
    return checks_its_thread_as_child(n)


def test_sync_code_never_blocks_event_loop(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            assert await engine.run(calls_step_in_thread, 3) == [3, True]
            assert await engine.run(calls_child_in_thread, 4) == [4, True]
            for program in (calls_sync_step_on_loop, calls_sync_child_on_loop):
                with pytest.raises(InvalidArgument, match="in_thread"):
                    await engine.run(program, 5)

    asyncio.run(main())


def test_sync_engine_runs_no_async_executions(url: str) -> None:
    async def start_async() -> None:
        async with AsyncEngine(url) as engine:
            await engine.start(calls_slow_steps.options(workflow_id="slow"), 3)

    async def finish_async() -> None:
        async with AsyncEngine(url) as engine:
            assert await (await engine.start(calls_slow_steps.options(workflow_id="slow"), 3)) == [0, 1, 2]

    asyncio.run(start_async())
    with Engine(url) as engine:
        with pytest.raises(InvalidArgument, match="AsyncEngine"):
            engine.start(calls_slow_steps, 3)
        assert engine.run(checks_its_thread_as_child, 1)[0] == 1
    asyncio.run(finish_async())


@step
async def raises_local_error(n: int) -> int:
    class LocalError(Exception):
        pass

    raise LocalError("of a local class")


@workflow
async def returns_error_as_recorded(n: int) -> str:
    try:
        await raises_local_error(n)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def test_error_of_local_class_is_always_a_remote_error(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            message = await engine.run(returns_error_as_recorded, 1)
            assert message.startswith("RemoteError: ") and "of a local class" in message

    asyncio.run(main())


def test_repeated_run_returns_recorded_output(url: str) -> None:
    async def main() -> None:
        expected = [[i, 2 * i] for i in range(3)]
        async with AsyncEngine(url) as engine:
            for _ in range(3):
                output = await engine.run(asyncio_program.calls_in_sequence.options(workflow_id="again"), 3)
                assert output == expected
            outputs = await asyncio.gather(
                *[
                    engine.run(asyncio_program.calls_in_sequence.options(workflow_id="at once"), 3)
                    for _ in range(5)
                ]
            )
            assert outputs == [expected] * 5

    asyncio.run(main())
