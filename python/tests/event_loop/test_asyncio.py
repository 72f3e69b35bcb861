"""Async workflows: every shape that asyncio knows, run, started, and over crashes."""

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

ALL = [*asyncio_program.PLAIN, *asyncio_program.PAIRS, asyncio_program.nested]
PROGRAM = PROGRAMS / "asyncio_program.py"


@pytest.mark.parametrize("program", ALL, ids=lambda program: program.name)
@pytest.mark.parametrize("suspend_after", [5.0, 0.001])
def test_program_returns_what_it_should(program: Workflow, suspend_after: float, url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url, suspend_after=suspend_after) as engine:
            wanted = asyncio_program.expected(program.name)
            assert await engine.run(program, asyncio_program.N) == wanted
            handle = await engine.start(program, asyncio_program.N)
            assert await handle == wanted

    asyncio.run(main())


def test_programs_go_on_after_kills(url: str) -> None:
    """Bodies kill the process at random; it is started again until all has ended."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    killed = 0
    # on a server it takes a lease to notice that a worker is dead
    often = "0.02" if url.startswith("sqlite") else "0.004"
    for victim in range(200):
        environment = {**os.environ, "KILL": often, "SEED": str(seed + victim)}
        ended = subprocess.run(
            [sys.executable, str(PROGRAM), url, "3"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        killed += 1
    else:
        pytest.fail("it has not ended after 200 kills")
    print(f"{killed} kills")
    assert killed > 0 or not url.startswith("sqlite")


@step
async def failing(n: int) -> int:
    raise LookupError("no such order", n)


@workflow
async def lets_it_out(n: int) -> int:
    return await failing(n)


@workflow
async def catches(n: int) -> list[object]:
    try:
        return [await failing(n)]
    except LookupError as error:
        return [error.args[0], error.args[1]]


def test_errors_keep_their_class(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            for _ in range(2):
                with pytest.raises(LookupError) as raised:
                    await engine.run(lets_it_out, 7)
                assert raised.value.args == ("no such order", 7)
                handle = await engine.start(lets_it_out, 8)
                with pytest.raises(LookupError) as raised:
                    await handle
                assert raised.value.args == ("no such order", 8)
            assert await engine.run(catches, 9) == ["no such order", 9]

    asyncio.run(main())


@workflow
async def leaves_a_branch_behind(n: int) -> list[object]:
    return await asyncio.gather(sleep(3600), failing(n))


def test_branches_that_are_left_behind_unwind_at_the_end(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            for started in (
                engine.run(leaves_a_branch_behind, 7),
                await engine.start(leaves_a_branch_behind, 8),
            ):
                with pytest.raises(LookupError):
                    await started
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            # that of the engine goes on
            left = {task for task in tasks if task.get_name() != "stepfast"}
            if left:
                _, pending = await asyncio.wait(left, timeout=60)
                assert not pending

    asyncio.run(main())


_attempts: list[int] = []


@step(retries=3, backoff=0.001)
async def third_time(n: int) -> int:
    _attempts.append(n)
    if len(_attempts) < 3:
        raise ConnectionError("not yet")
    return n


@workflow
async def tries(n: int) -> int:
    return await third_time(n)


def test_failed_attempts_are_followed_by_others(url: str) -> None:
    async def main() -> None:
        _attempts.clear()
        async with AsyncEngine(url) as engine:
            assert await engine.run(tries, 5) == 5
        assert _attempts == [5, 5, 5]

    asyncio.run(main())


@workflow
async def sleeper(seconds: float) -> str:
    await sleep(seconds)
    return "awake"


def test_sleepers_are_suspended_and_wake(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url, suspend_after=0.01) as engine:
            handles = [await engine.start(sleeper, 0.05) for _ in range(50)]
            assert [await handle for handle in handles] == ["awake"] * 50
            assert await engine.run(sleeper, 0.05) == "awake"

    asyncio.run(main())


def test_an_id_is_started_once(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            handles = await asyncio.gather(
                *[engine.start(asyncio_program.in_a_row.options(workflow_id="the one"), 3) for _ in range(20)]
            )
            assert {handle.workflow_id for handle in handles} == {"the one"}
            outputs = [await handle for handle in handles]
            assert outputs == [[[i, 2 * i] for i in range(3)]] * 20

    asyncio.run(main())


_bodies: list[int] = []


@step
async def slow(n: int) -> int:
    _bodies.append(n)
    await asyncio.sleep(0.02)
    return n


@workflow
async def slowly(n: int) -> list[int]:
    try:
        return [await slow(i) for i in range(n)]
    finally:
        # a durable call while the code unwinds: it must not be recorded
        await slow(100)


def test_cancelling_a_caller_does_not_cancel_the_execution(url: str) -> None:
    async def main() -> None:
        _bodies.clear()
        async with AsyncEngine(url) as engine:
            caller = asyncio.create_task(engine.run(slowly.options(workflow_id="slow"), 5))
            while _bodies[-1:] != [2]:
                await asyncio.sleep(0)
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
            handle = await engine.start(slowly.options(workflow_id="slow"), 5)
            assert await handle == [0, 1, 2, 3, 4]
        # the step that was cut off ran again, the others did not
        assert _bodies == [0, 1, 2, 2, 3, 4, 100]

    asyncio.run(main())


@workflow
async def parent(n: int) -> list[list[list[int]]]:
    first = await asyncio_program.in_a_row(n)
    others = await asyncio.gather(*[asyncio_program.gathered(n) for _ in range(3)])
    return [first, *others]


@workflow
async def parent_of_failure(n: int) -> str:
    try:
        await lets_it_out(n)
    except LookupError as error:
        return f"caught {error.args}"
    return "not caught"


def test_a_workflow_called_in_a_workflow_is_a_child(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url, suspend_after=0.01) as engine:
            wanted = [[[i, 2 * i] for i in range(3)]] * 4
            assert await engine.run(parent, 3) == wanted
            assert await (await engine.start(parent, 3)) == wanted
            assert await engine.run(parent_of_failure, 3) == "caught ('no such order', 3)"

    asyncio.run(main())


@workflow
async def hangs(n: int) -> int:
    await twice_then_wait(n)
    return n


@step
async def twice_then_wait(n: int) -> int:
    _bodies.append(n)
    await asyncio.Event().wait()
    return n


def test_a_cancelled_execution_lets_go_of_what_it_waits_for(url: str) -> None:
    async def main() -> None:
        _bodies.clear()
        async with AsyncEngine(url) as engine:
            handle = await engine.start(hangs, 1)
            while not _bodies:
                await asyncio.sleep(0)
            before = len(asyncio.all_tasks())
            await handle.cancel()
            with pytest.raises(WorkflowCancelled):
                await handle
            assert await handle.status() == "cancelled"
            while len(asyncio.all_tasks()) >= before:
                await asyncio.sleep(0)

    asyncio.run(main())


def test_two_engines_share_a_loop(tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        async with AsyncEngine(f"sqlite:{tmp_path}/a.db") as a, AsyncEngine(f"sqlite:{tmp_path}/b.db") as b:
            handles = [
                await engine.start(asyncio_program.pool, asyncio_program.N)
                for engine in (a, b)
                for _ in range(5)
            ]
            for handle in handles:
                assert await handle == asyncio_program.expected("pool")

    asyncio.run(main())


def test_an_engine_that_is_closed_hands_back(tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        url = f"sqlite:{tmp_path}/a.db"
        _bodies.clear()
        async with AsyncEngine(url) as engine:
            await engine.start(slowly.options(workflow_id="slow"), 5)
            while _bodies[-1:] != [1]:
                await asyncio.sleep(0)
        async with AsyncEngine(url) as engine:
            handle = await engine.start(slowly.options(workflow_id="slow"), 5)
            assert await handle == [0, 1, 2, 3, 4]
        assert _bodies.count(0) == 1

    asyncio.run(main())


@step(timeout=0.02, retries=1, backoff=0.001)
async def too_slow(n: int) -> int:
    _bodies.append(n)
    await asyncio.sleep(n)
    return n


@workflow
async def waits_for_it(n: int) -> str:
    try:
        await too_slow(n)
    except TimeoutError as error:
        return str(error)
    return "in time"


def test_an_attempt_that_takes_too_long_fails(url: str) -> None:
    async def main() -> None:
        _bodies.clear()
        async with AsyncEngine(url) as engine:
            assert await engine.run(waits_for_it, 0) == "in time"
            for started in (engine.run(waits_for_it, 60), await engine.start(waits_for_it, 60)):
                assert await started == "the attempt took longer than 0.02 s"
        assert _bodies == [0, 60, 60, 60, 60]

    asyncio.run(main())


@step
def in_a_thread(n: int) -> list[object]:
    return [n, threading.current_thread() is not threading.main_thread()]


@workflow
async def threaded(n: int) -> list[object]:
    return await in_a_thread.in_thread(n)


@workflow
async def would_block(n: int) -> list[object]:
    return in_a_thread(n)


@workflow
def sync_child(n: int) -> list[object]:
    return in_a_thread(n)


@workflow
async def parent_of_sync(n: int) -> list[object]:
    return await sync_child.in_thread(n)


@workflow
async def blocking_parent(n: int) -> list[object]:
    return sync_child(n)


def test_sync_code_never_blocks_the_loop(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            assert await engine.run(threaded, 3) == [3, True]
            assert await engine.run(parent_of_sync, 4) == [4, True]
            for blocking in (would_block, blocking_parent):
                with pytest.raises(InvalidArgument, match="in_thread"):
                    await engine.run(blocking, 5)

    asyncio.run(main())


def test_a_sync_engine_leaves_async_workflows_to_others(url: str) -> None:
    async def begin() -> None:
        async with AsyncEngine(url) as engine:
            await engine.start(slowly.options(workflow_id="slow"), 3)

    async def end() -> None:
        async with AsyncEngine(url) as engine:
            assert await (await engine.start(slowly.options(workflow_id="slow"), 3)) == [0, 1, 2]

    asyncio.run(begin())
    with Engine(url) as engine:
        with pytest.raises(InvalidArgument, match="AsyncEngine"):
            engine.start(slowly, 3)
        assert engine.run(sync_child, 1)[0] == 1
    asyncio.run(end())


@step
async def fails_locally(n: int) -> int:
    class LocalError(Exception):
        pass

    raise LocalError("nobody else knows me")


@workflow
async def sees_it_as_a_replay_does(n: int) -> str:
    try:
        await fails_locally(n)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def test_what_cannot_be_raised_again_is_not_raised_the_first_time(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            said = await engine.run(sees_it_as_a_replay_does, 1)
            assert said.startswith("RemoteError: ") and "nobody else knows me" in said

    asyncio.run(main())


def test_running_an_id_again_gives_its_output(url: str) -> None:
    async def main() -> None:
        wanted = [[i, 2 * i] for i in range(3)]
        async with AsyncEngine(url) as engine:
            for _ in range(3):
                output = await engine.run(asyncio_program.in_a_row.options(workflow_id="again"), 3)
                assert output == wanted
            outputs = await asyncio.gather(
                *[engine.run(asyncio_program.in_a_row.options(workflow_id="at once"), 3) for _ in range(5)]
            )
            assert outputs == [wanted] * 5

    asyncio.run(main())
