"""Code that unwinds, is cancelled from outside or is abandoned: its durable calls are not recorded."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import replay_workflows

import stepfast
from stepfast import AsyncEngine, Engine, Workflow, sleep, step, workflow
from stepfast.values import RemoteError

_body_names: list[str] = []
_bodies_are_blocked = asyncio.Event()


@step
async def records_name(name: str) -> str:
    _body_names.append(name)
    return name


@step
async def blocks_once(name: str) -> str:
    """Blocks in its first call, and returns in the second."""
    _body_names.append(name)
    if _body_names.count(name) == 1:
        if sum(body.startswith("slow") for body in _body_names) == 2:
            _bodies_are_blocked.set()
        await asyncio.Event().wait()
    return name


def execution_tasks() -> set[asyncio.Task[Any]]:
    """Returns the tasks of executions, without the current task and the engine's own."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    return {task for task in tasks if task.get_name() != "stepfast"}


async def sleep_and_record(name: str) -> str:
    await sleep(0.6)
    return await records_name(name)


@workflow
async def sleeps_in_group() -> list[str]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(sleep_and_record(name)) for name in "ab"]
    return [task.result() for task in tasks]


@workflow
async def sleeps_in_gather() -> list[str]:
    return await asyncio.gather(sleep_and_record("a"), sleep_and_record("b"))


@workflow
async def sleeps_in_awaited_tasks() -> list[str]:
    tasks = [asyncio.create_task(sleep_and_record(name)) for name in "ab"]
    return [await task for task in tasks]


@workflow
async def sleeps_behind_queue() -> list[str]:
    queue: asyncio.Queue[str] = asyncio.Queue()

    async def feed(name: str) -> None:
        queue.put_nowait(await sleep_and_record(name))

    async with asyncio.TaskGroup() as group:
        for name in "ab":
            group.create_task(feed(name))
        names = [await queue.get() for _ in "ab"]
    return sorted(names)


@pytest.mark.parametrize(
    "program",
    [sleeps_in_group, sleeps_in_gather, sleeps_in_awaited_tasks, sleeps_behind_queue],
    ids=lambda it: it.name,
)
def test_execution_is_suspended_when_all_branches_sleep(
    program: Workflow[..., Any], url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with AsyncEngine(url, suspend_after=0.01) as engine:
            handle = await engine.start(program)
            while await handle.status() != "waiting":
                await asyncio.sleep(0.001)
            # the engine has cancelled the tasks; a task that awaits another ends one turn of the loop later
            for _ in range(10):
                await asyncio.sleep(0)
            assert not execution_tasks()
            assert await handle == ["a", "b"]
            assert await engine.run(program) == ["a", "b"]

    asyncio.run(main())
    # asyncio does not report the exceptions that unwind the tasks
    assert not [record for record in caplog.records if record.name == "asyncio"]


@replay_workflows.time_limited_workflow
async def sleeps_with_limit_of_asyncio() -> str:
    try:
        async with asyncio.timeout(0.2):
            async with asyncio.TaskGroup() as group:
                for name in "ab":
                    group.create_task(sleep_and_record(name))
    except TimeoutError:
        return "late"
    return "in time"


def test_limit_of_asyncio_keeps_execution_in_memory(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url, suspend_after=0.01) as engine:
            assert await (await engine.start(sleeps_with_limit_of_asyncio)) == "late"

    asyncio.run(main())


async def record_and_block(name: str) -> list[str]:
    return [await records_name(name), await blocks_once("slow " + name)]


EXPECTED_OUTPUT = [["a", "slow a"], ["b", "slow b"], ["end"]]


@workflow
async def blocks_in_group() -> list[list[str]]:
    results = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(record_and_block(name)) for name in "ab"]
        results = [task.result() for task in tasks]
    finally:
        results.append([await records_name("end")])
    return results


@workflow
async def blocks_in_gather() -> list[list[str]]:
    results = []
    try:
        results = list(await asyncio.gather(record_and_block("a"), record_and_block("b")))
    finally:
        results.append([await records_name("end")])
    return results


@workflow
async def blocks_behind_queue() -> list[list[str]]:
    queue: asyncio.Queue[list[str]] = asyncio.Queue()

    async def feed(name: str) -> None:
        queue.put_nowait(await record_and_block(name))

    results: list[list[str]] = []
    try:
        async with asyncio.TaskGroup() as group:
            for name in "ab":
                group.create_task(feed(name))
            results = sorted([await queue.get() for _ in "ab"])
    except BaseException:
        results.append([await records_name("failed")])
        raise
    finally:
        results.append([await records_name("end")])
    return results


BLOCKING_WORKFLOWS = [blocks_in_group, blocks_in_gather, blocks_behind_queue]


@pytest.mark.parametrize("program", BLOCKING_WORKFLOWS, ids=lambda program: program.name)
@pytest.mark.parametrize("is_inline", [True, False], ids=["run", "start"])
def test_cancelled_tasks_do_not_cancel_their_execution(
    program: Workflow[..., Any], is_inline: bool, url: str
) -> None:
    async def main() -> None:
        global _bodies_are_blocked
        _body_names.clear()
        _bodies_are_blocked = asyncio.Event()
        async with AsyncEngine(url) as engine:
            if is_inline:
                caller = asyncio.create_task(engine.run(program.options(workflow_id="x")))
                await _bodies_are_blocked.wait()
                caller.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await caller
            else:
                await engine.start(program.options(workflow_id="x"))
                await _bodies_are_blocked.wait()
                for task in execution_tasks():
                    task.cancel()
            handle = await engine.start(program.options(workflow_id="x"))
            assert await handle == EXPECTED_OUTPUT
        # recorded steps did not run again, and the step of the cleanup ran only at the end
        assert sorted(_body_names) == ["a", "b", "end"] + ["slow a"] * 2 + ["slow b"] * 2
        assert _body_names[-1] == "end"

    asyncio.run(main())


@workflow
async def blocks_outside_of_steps() -> list[str]:
    names = [await records_name("a")]
    try:
        if _body_names.count("code") == 0:
            _body_names.append("code")
            _bodies_are_blocked.set()
            await asyncio.Event().wait()
    finally:
        names.append(await records_name("end"))
    return names


def test_cancelled_caller_records_no_steps_of_cleanup(url: str) -> None:
    async def main() -> None:
        global _bodies_are_blocked
        _body_names.clear()
        _bodies_are_blocked = asyncio.Event()
        async with AsyncEngine(url) as engine:
            caller = asyncio.create_task(engine.run(blocks_outside_of_steps.options(workflow_id="x")))
            await _bodies_are_blocked.wait()
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
            assert await (await engine.start(blocks_outside_of_steps.options(workflow_id="x"))) == [
                "a",
                "end",
            ]
        assert _body_names == ["a", "code", "end"]

    asyncio.run(main())


@workflow
async def awaits_its_cancelled_task() -> str:
    task = asyncio.create_task(blocks_once("slow"))
    await records_name("a")
    task.cancel()
    await task
    return "not reached"


@workflow
async def cancels_its_main_task() -> str:
    main = asyncio.current_task()
    assert main is not None

    async def cancel_main() -> None:
        await records_name("a")
        main.cancel()

    task = asyncio.create_task(cancel_main())
    await blocks_once("slow")
    await task
    return "not reached"


def test_escaping_own_cancellation_fails_the_execution(url: str) -> None:
    async def main() -> None:
        global _bodies_are_blocked
        _bodies_are_blocked = asyncio.Event()
        async with AsyncEngine(url) as engine:
            _body_names.clear()
            with pytest.raises(RemoteError, match="CancelledError"):
                await engine.run(awaits_its_cancelled_task)
            for program in (awaits_its_cancelled_task, cancels_its_main_task):
                _body_names.clear()
                handle = await engine.start(program)
                with pytest.raises(RemoteError, match="CancelledError"):
                    await handle
                assert await handle.status() == "failed"

    asyncio.run(main())


class Halt(BaseException):
    """A BaseException that does not end programs."""


@step
async def raises_halt(n: int) -> None:
    _body_names.append(str(n))
    raise Halt(n)


@step
def raises_halt_in_thread(n: int) -> None:
    _body_names.append(str(n))
    raise Halt(n)


@workflow
async def catches_halt(n: int) -> list[object]:
    try:
        await raises_halt(n)
    except Halt as raised:
        await replay_workflows.hold()
        return [raised.args[0]]
    return ["not reached"]


@workflow
async def calls_halting_step(n: int) -> None:
    await raises_halt(n)


@workflow
def calls_halting_step_in_thread(n: int) -> None:
    raises_halt_in_thread(n)


def test_base_exceptions_are_recorded_outcomes(url: str) -> None:
    async def main() -> None:
        _body_names.clear()
        assert await replay_workflows.replay(url, catches_halt, 3) == [3]
        async with AsyncEngine(url) as engine:
            for program, n in ((calls_halting_step, 4), (calls_halting_step_in_thread, 5)):
                for execution in (engine.run(program, n), (await engine.start(program, n)).result()):
                    with pytest.raises(Halt) as raised:
                        await execution
                    assert raised.value.args == (n,)
        assert _body_names == ["3", "4", "4", "5", "5"]

    asyncio.run(main())
    with Engine(url) as engine:
        for call in (
            lambda: engine.run(calls_halting_step_in_thread, 6),
            engine.start(calls_halting_step_in_thread, 6).result,
        ):
            with pytest.raises(Halt):
                call()
    assert _body_names[5:] == ["6", "6"]


@step
async def awaits_cancelled_task_in_body(n: int) -> int:
    task = asyncio.create_task(asyncio.Event().wait())
    task.cancel()
    await task
    return n


@workflow
async def returns_kind_of_failure(n: int) -> str:
    try:
        await awaits_cancelled_task_in_body(n)
    except RemoteError as raised:
        await replay_workflows.hold()
        return raised.kind
    return "not reached"


def test_body_that_awaits_a_cancelled_task_fails(url: str) -> None:
    assert asyncio.run(replay_workflows.replay(url, returns_kind_of_failure, 1)) == "CancelledError"


@workflow
async def abandons_straggling_tasks(n: int) -> list[str]:
    async def straggler(i: int) -> None:
        try:
            await records_name(f"straggler {i}")
            await asyncio.Event().wait()
        finally:
            _body_names.append("unwound")
            await records_name(f"late {i}")

    tasks = [asyncio.create_task(straggler(i)) for i in range(n)]
    names = [await records_name("a")]
    while len([body for body in _body_names if body.startswith("straggler")]) < n:
        await records_name("more")
    assert not any(task.done() for task in tasks)
    return names


def test_unawaited_branches_end_with_their_workflow(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            for run in (
                engine.run(abandons_straggling_tasks, 3),
                (await engine.start(abandons_straggling_tasks, 3)).result(),
            ):
                assert await run == ["a"]
                while execution_tasks():
                    await asyncio.sleep(0)
            assert _body_names.count("unwound") == 6
            assert not any(body.startswith("late") for body in _body_names)

    _body_names.clear()
    asyncio.run(main())
    assert not [record for record in caplog.records if record.name == "asyncio"]


@workflow
async def swallows_everything(n: int) -> list[str]:
    names = []
    for i in range(n):
        try:
            names.append(await records_name(f"{i}"))
            await sleep(0.5)
        except BaseException:
            # a step of unwinding code must neither begin nor be recorded
            try:
                names.append(await records_name(f"swallowed {i}"))
            except:  # noqa: E722
                names.append("swallowed")
    return names


@workflow
def swallows_everything_in_thread(n: int) -> list[str]:
    names = []
    for i in range(n):
        try:
            names.append(records_name_in_thread(f"{i}"))
            sleep(0.5)
        except BaseException:
            try:
                names.append(records_name_in_thread(f"swallowed {i}"))
            except:  # noqa: E722
                names.append("swallowed")
    return names


@step
def records_name_in_thread(name: str) -> str:
    _body_names.append(name)
    return name


def test_code_that_swallows_unwinding_makes_no_calls(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url, suspend_after=0.01) as engine:
            for program in (swallows_everything, swallows_everything_in_thread):
                for is_inline in (False, True):
                    _body_names.clear()
                    if is_inline:
                        assert await engine.run(program, 3) == ["0", "1", "2"]
                    else:
                        assert await (await engine.start(program, 3)) == ["0", "1", "2"]
                    assert _body_names == ["0", "1", "2"]

    asyncio.run(main())


@workflow
async def swallows_its_cancellation(n: int) -> list[str]:
    names = []
    for i in range(n):
        try:
            names.append(await blocks_once(f"slow {i}"))
        except BaseException:
            names.append("swallowed")
    return names


def test_execution_is_cancelled_if_code_swallows_the_cancel(url: str) -> None:
    async def main() -> None:
        global _bodies_are_blocked
        _body_names.clear()
        _body_names.append("slow: the next body is the second")
        _bodies_are_blocked = asyncio.Event()
        async with AsyncEngine(url) as engine:
            handle = await engine.start(swallows_its_cancellation, 3)
            await _bodies_are_blocked.wait()
            assert await handle.cancel()
            with pytest.raises(Exception, match="cancelled"):
                await handle
            while execution_tasks():
                await asyncio.sleep(0)
        assert _body_names[1:] == ["slow 0"]

    asyncio.run(main())


@step
def returns_its_input(n: int) -> int:
    return n


@workflow
async def calls_in_foreign_threads(n: int) -> list[str]:
    messages = []
    for call in (lambda: returns_its_input(n), lambda: asyncio.run(records_name("x")), lambda: sleep(1)):
        try:
            await asyncio.to_thread(call)
        except Exception as raised:
            messages.append(str(raised))
    return messages


@workflow
def calls_in_foreign_thread_of_sync_code(n: int) -> str:
    from contextvars import copy_context

    messages = []

    def call() -> None:
        try:
            returns_its_input(n)
        except Exception as raised:
            messages.append(str(raised))

    thread = threading.Thread(target=copy_context().run, args=(call,))
    thread.start()
    thread.join()
    return messages[0]


def test_durable_calls_in_foreign_threads_are_refused(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            messages = await engine.run(calls_in_foreign_threads, 1)
            assert len(messages) == 3 and all("not the workflow's" in it for it in messages), messages
            assert "in_thread" in messages[0]
            assert "not the workflow's" in await engine.run(calls_in_foreign_thread_of_sync_code, 1)

    asyncio.run(main())


@step
async def raises_refusal(name: str) -> str:
    raise LookupError(name)


@workflow
async def is_cancelled_by_group(n: int) -> str:
    _body_names.append("code")
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(raises_refusal("a"))
            await sleep(3600)
    except* LookupError:
        pass
    return await records_name(f"{n}")


@workflow
async def is_cancelled_by_timeout(n: int) -> str:
    _body_names.append("code")
    try:
        async with stepfast.timeout(0.01):
            await asyncio.Event().wait()
    except TimeoutError:
        pass
    return await records_name(f"{n}")


def new_loop_with_task_factory() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_task_factory(lambda loop, coro, **kwargs: asyncio.Task(coro, loop=loop, **kwargs))
    return loop


LOOP_FACTORIES = [asyncio.new_event_loop, new_loop_with_task_factory]


@pytest.mark.parametrize("make_loop", LOOP_FACTORIES, ids=lambda make: make.__name__)
@pytest.mark.parametrize("program", [is_cancelled_by_group, is_cancelled_by_timeout], ids=lambda it: it.name)
def test_inline_code_continues_after_cancelling_itself(
    program: Workflow[..., Any],
    make_loop: Callable[[], asyncio.AbstractEventLoop],
    url: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        _body_names.clear()
        async with AsyncEngine(url) as engine:
            assert await engine.run(program, 7) == "7"
            assert await (await engine.start(program, 8)) == "8"
        assert _body_names == ["code", "7", "code", "8"]
        task = asyncio.current_task()
        assert task is not None and not task.cancelling()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())
    assert not [record for record in caplog.records if record.name == "asyncio"]


@workflow
async def blocks_in_branch(n: int) -> int:
    async def block_once() -> None:
        _body_names.append("code")
        if _body_names.count("code") == 1:
            _bodies_are_blocked.set()
            await asyncio.Event().wait()

    await asyncio.create_task(block_once())
    return n


@pytest.mark.parametrize("make_loop", LOOP_FACTORIES, ids=lambda make: make.__name__)
def test_caller_of_several_branches_can_be_cancelled(
    make_loop: Callable[[], asyncio.AbstractEventLoop], url: str
) -> None:
    async def main() -> None:
        global _bodies_are_blocked
        _body_names.clear()
        _bodies_are_blocked = asyncio.Event()
        async with AsyncEngine(url) as engine:
            caller = asyncio.create_task(engine.run(blocks_in_branch.options(workflow_id="x"), 7))
            await _bodies_are_blocked.wait()
            caller.cancel("by the test")
            with pytest.raises(asyncio.CancelledError, match="by the test"):
                await caller
            assert await (await engine.start(blocks_in_branch.options(workflow_id="x"), 7)) == 7
        assert _body_names == ["code", "code"]

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())
