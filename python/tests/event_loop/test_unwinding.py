"""Code that unwinds, that is cancelled from outside, or that nobody waits for: nothing it does counts."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import replay_workflows

import stepfast
from stepfast import AsyncEngine, Engine, Workflow, sleep, step, workflow
from stepfast.values import RemoteError

_bodies: list[str] = []
_in_body = asyncio.Event()


@step
async def plain(name: str) -> str:
    _bodies.append(name)
    return name


@step
async def slow_once(name: str) -> str:
    """Waits, the first time, for something that never comes."""
    _bodies.append(name)
    if _bodies.count(name) == 1:
        if sum(body.startswith("slow") for body in _bodies) == 2:
            _in_body.set()
        await asyncio.Event().wait()
    return name


def others() -> set[asyncio.Task[Any]]:
    """The tasks of executions: neither this one nor the engine's own."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    return {task for task in tasks if task.get_name() != "stepfast"}


async def nap_then(name: str) -> str:
    await sleep(0.6)
    return await plain(name)


@workflow
async def naps_in_group() -> list[str]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(nap_then(name)) for name in "ab"]
    return [task.result() for task in tasks]


@workflow
async def naps_gathered() -> list[str]:
    return await asyncio.gather(nap_then("a"), nap_then("b"))


@workflow
async def naps_awaited() -> list[str]:
    tasks = [asyncio.create_task(nap_then(name)) for name in "ab"]
    return [await task for task in tasks]


@workflow
async def naps_with_a_queue() -> list[str]:
    queue: asyncio.Queue[str] = asyncio.Queue()

    async def feeds(name: str) -> None:
        queue.put_nowait(await nap_then(name))

    async with asyncio.TaskGroup() as group:
        for name in "ab":
            group.create_task(feeds(name))
        names = [await queue.get() for _ in "ab"]
    return sorted(names)


@pytest.mark.parametrize(
    "program", [naps_in_group, naps_gathered, naps_awaited, naps_with_a_queue], ids=lambda it: it.name
)
def test_branches_that_all_sleep_are_suspended(
    program: Workflow[..., Any], url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with AsyncEngine(url, suspend_after=0.01) as engine:
            handle = await engine.start(program)
            while await handle.status() != "waiting":
                await asyncio.sleep(0.001)
            # its tasks have been told by now; each that waits for another hears of it a turn later
            for _ in range(10):
                await asyncio.sleep(0)
            assert not others()
            assert await handle == ["a", "b"]
            assert await engine.run(program) == ["a", "b"]

    asyncio.run(main())
    # what unwinds them is nobody's business
    assert not [record for record in caplog.records if record.name == "asyncio"]


@replay_workflows.warned
async def limited_by_asyncio() -> str:
    try:
        async with asyncio.timeout(0.2):
            async with asyncio.TaskGroup() as group:
                for name in "ab":
                    group.create_task(nap_then(name))
    except TimeoutError:
        return "late"
    return "in time"


def test_a_limit_that_is_not_durable_keeps_an_execution_in_memory(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url, suspend_after=0.01) as engine:
            assert await (await engine.start(limited_by_asyncio)) == "late"

    asyncio.run(main())


async def branch(name: str) -> list[str]:
    return [await plain(name), await slow_once("slow " + name)]


EXPECTED = [["a", "slow a"], ["b", "slow b"], ["end"]]


@workflow
async def group_of_branches() -> list[list[str]]:
    results = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(branch(name)) for name in "ab"]
        results = [task.result() for task in tasks]
    finally:
        results.append([await plain("end")])
    return results


@workflow
async def gather_of_branches() -> list[list[str]]:
    results = []
    try:
        results = list(await asyncio.gather(branch("a"), branch("b")))
    finally:
        results.append([await plain("end")])
    return results


@workflow
async def queue_of_branches() -> list[list[str]]:
    queue: asyncio.Queue[list[str]] = asyncio.Queue()

    async def feeds(name: str) -> None:
        queue.put_nowait(await branch(name))

    results: list[list[str]] = []
    try:
        async with asyncio.TaskGroup() as group:
            for name in "ab":
                group.create_task(feeds(name))
            results = sorted([await queue.get() for _ in "ab"])
    except BaseException:
        results.append([await plain("failed")])
        raise
    finally:
        results.append([await plain("end")])
    return results


PROGRAMS = [group_of_branches, gather_of_branches, queue_of_branches]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
@pytest.mark.parametrize("is_inline", [True, False], ids=["run", "start"])
def test_who_cancels_tasks_does_not_cancel_the_execution(
    program: Workflow[..., Any], is_inline: bool, url: str
) -> None:
    async def main() -> None:
        global _in_body
        _bodies.clear()
        _in_body = asyncio.Event()
        async with AsyncEngine(url) as engine:
            if is_inline:
                caller = asyncio.create_task(engine.run(program.options(workflow_id="it")))
                await _in_body.wait()
                caller.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await caller
            else:
                await engine.start(program.options(workflow_id="it"))
                await _in_body.wait()
                for task in others():
                    task.cancel()
            handle = await engine.start(program.options(workflow_id="it"))
            assert await handle == EXPECTED
        # what was recorded did not run again, and what cleans up ran in the end only
        assert sorted(_bodies) == ["a", "b", "end"] + ["slow a"] * 2 + ["slow b"] * 2
        assert _bodies[-1] == "end"

    asyncio.run(main())


@workflow
async def waits_outside() -> list[str]:
    names = [await plain("a")]
    try:
        if _bodies.count("begun") == 0:
            _bodies.append("begun")
            _in_body.set()
            await asyncio.Event().wait()
    finally:
        names.append(await plain("end"))
    return names


def test_a_caller_that_is_cancelled_leaves_nothing_of_what_cleans_up(url: str) -> None:
    async def main() -> None:
        global _in_body
        _bodies.clear()
        _in_body = asyncio.Event()
        async with AsyncEngine(url) as engine:
            caller = asyncio.create_task(engine.run(waits_outside.options(workflow_id="it")))
            await _in_body.wait()
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
            assert await (await engine.start(waits_outside.options(workflow_id="it"))) == ["a", "end"]
        assert _bodies == ["a", "begun", "end"]

    asyncio.run(main())


@workflow
async def awaits_what_it_cancelled() -> str:
    task = asyncio.create_task(slow_once("slow"))
    await plain("a")
    task.cancel()
    await task
    return "not reached"


@workflow
async def cancels_itself() -> str:
    main = asyncio.current_task()
    assert main is not None

    async def cancels() -> None:
        await plain("a")
        main.cancel()

    task = asyncio.create_task(cancels())
    await slow_once("slow")
    await task
    return "not reached"


def test_a_cancellation_of_its_own_that_leaves_the_code_is_a_failure(url: str) -> None:
    async def main() -> None:
        global _in_body
        _in_body = asyncio.Event()
        async with AsyncEngine(url) as engine:
            _bodies.clear()
            with pytest.raises(RemoteError, match="CancelledError"):
                await engine.run(awaits_what_it_cancelled)
            for program in (awaits_what_it_cancelled, cancels_itself):
                _bodies.clear()
                handle = await engine.start(program)
                with pytest.raises(RemoteError, match="CancelledError"):
                    await handle
                assert await handle.status() == "failed"

    asyncio.run(main())


class Halt(BaseException):
    """No Exception, but nothing that ends programs."""


@step
async def halts(n: int) -> None:
    _bodies.append(str(n))
    raise Halt(n)


@step
def halts_in_thread(n: int) -> None:
    _bodies.append(str(n))
    raise Halt(n)


@workflow
async def catches_halt(n: int) -> list[object]:
    try:
        await halts(n)
    except Halt as raised:
        await replay_workflows.hold()
        return [raised.args[0]]
    return ["not reached"]


@workflow
async def is_halted(n: int) -> None:
    await halts(n)


@workflow
def is_halted_in_thread(n: int) -> None:
    halts_in_thread(n)


def test_exceptions_of_any_base_are_outcomes(url: str) -> None:
    async def main() -> None:
        _bodies.clear()
        assert await replay_workflows.replayed(url, catches_halt, 3) == [3]
        async with AsyncEngine(url) as engine:
            for program, n in ((is_halted, 4), (is_halted_in_thread, 5)):
                for started in (engine.run(program, n), (await engine.start(program, n)).result()):
                    with pytest.raises(Halt) as raised:
                        await started
                    assert raised.value.args == (n,)
        assert _bodies == ["3", "4", "4", "5", "5"]

    asyncio.run(main())
    with Engine(url) as engine:
        for failed in (
            lambda: engine.run(is_halted_in_thread, 6),
            engine.start(is_halted_in_thread, 6).result,
        ):
            with pytest.raises(Halt):
                failed()
    assert _bodies[5:] == ["6", "6"]


@step
async def cancels_its_own(n: int) -> int:
    task = asyncio.create_task(asyncio.Event().wait())
    task.cancel()
    await task
    return n


@workflow
async def sees_it_fail(n: int) -> str:
    try:
        await cancels_its_own(n)
    except RemoteError as raised:
        await replay_workflows.hold()
        return raised.kind
    return "not reached"


def test_a_body_that_awaits_what_it_cancelled_has_failed(url: str) -> None:
    assert asyncio.run(replay_workflows.replayed(url, sees_it_fail, 1)) == "CancelledError"


@workflow
async def leaves_tasks_behind(n: int) -> list[str]:
    async def straggler(i: int) -> None:
        try:
            await plain(f"straggler {i}")
            await asyncio.Event().wait()
        finally:
            _bodies.append("left")
            await plain(f"late {i}")

    tasks = [asyncio.create_task(straggler(i)) for i in range(n)]
    names = [await plain("a")]
    while len([body for body in _bodies if body.startswith("straggler")]) < n:
        await plain("more")
    assert not any(task.done() for task in tasks)
    return names


def test_branches_that_nobody_waits_for_end_with_the_workflow(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            for run in (
                engine.run(leaves_tasks_behind, 3),
                (await engine.start(leaves_tasks_behind, 3)).result(),
            ):
                assert await run == ["a"]
                while others():
                    await asyncio.sleep(0)
            assert _bodies.count("left") == 6
            assert not any(body.startswith("late") for body in _bodies)

    _bodies.clear()
    asyncio.run(main())
    assert not [record for record in caplog.records if record.name == "asyncio"]


@workflow
async def swallows_everything(n: int) -> list[str]:
    names = []
    for i in range(n):
        try:
            names.append(await plain(f"{i}"))
            await sleep(0.5)
        except BaseException:
            # begun and recorded while the code unwinds? it must be neither
            try:
                names.append(await plain(f"swallowed {i}"))
            except:  # noqa: E722
                names.append("swallowed")
    return names


@workflow
def swallows_everything_in_thread(n: int) -> list[str]:
    names = []
    for i in range(n):
        try:
            names.append(plain_in_thread(f"{i}"))
            sleep(0.5)
        except BaseException:
            try:
                names.append(plain_in_thread(f"swallowed {i}"))
            except:  # noqa: E722
                names.append("swallowed")
    return names


@step
def plain_in_thread(name: str) -> str:
    _bodies.append(name)
    return name


def test_code_that_swallows_what_unwinds_it_does_nothing_more(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url, suspend_after=0.01) as engine:
            for program in (swallows_everything, swallows_everything_in_thread):
                for is_inline in (False, True):
                    _bodies.clear()
                    if is_inline:
                        assert await engine.run(program, 3) == ["0", "1", "2"]
                    else:
                        assert await (await engine.start(program, 3)) == ["0", "1", "2"]
                    assert _bodies == ["0", "1", "2"]

    asyncio.run(main())


@workflow
async def swallows_its_cancellation(n: int) -> list[str]:
    names = []
    for i in range(n):
        try:
            names.append(await slow_once(f"slow {i}"))
        except BaseException:
            names.append("swallowed")
    return names


def test_a_cancelled_execution_whose_code_swallows_that_is_cancelled(url: str) -> None:
    async def main() -> None:
        global _in_body
        _bodies.clear()
        _bodies.append("slow, so that the next is the second")
        _in_body = asyncio.Event()
        async with AsyncEngine(url) as engine:
            handle = await engine.start(swallows_its_cancellation, 3)
            await _in_body.wait()
            assert await handle.cancel()
            with pytest.raises(Exception, match="cancelled"):
                await handle
            while others():
                await asyncio.sleep(0)
        assert _bodies[1:] == ["slow 0"]

    asyncio.run(main())


@step
def in_this_thread(n: int) -> int:
    return n


@workflow
async def steps_in_foreign_threads(n: int) -> list[str]:
    said = []
    for call in (lambda: in_this_thread(n), lambda: asyncio.run(plain("x")), lambda: sleep(1)):
        try:
            await asyncio.to_thread(call)
        except Exception as raised:
            said.append(str(raised))
    return said


@workflow
def steps_in_foreign_threads_of_sync_code(n: int) -> str:
    from contextvars import copy_context

    said = []

    def call() -> None:
        try:
            in_this_thread(n)
        except Exception as raised:
            said.append(str(raised))

    thread = threading.Thread(target=copy_context().run, args=(call,))
    thread.start()
    thread.join()
    return said[0]


def test_durable_calls_in_threads_that_are_not_the_workflows_are_refused(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            said = await engine.run(steps_in_foreign_threads, 1)
            assert len(said) == 3 and all("not the workflow's" in each for each in said), said
            assert "in_thread" in said[0]
            assert "not the workflow's" in await engine.run(steps_in_foreign_threads_of_sync_code, 1)

    asyncio.run(main())


@step
async def refuses(name: str) -> str:
    raise LookupError(name)


@workflow
async def cancelled_by_a_group(n: int) -> str:
    _bodies.append("code")
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(refuses("a"))
            await sleep(3600)
    except* LookupError:
        pass
    return await plain(f"{n}")


@workflow
async def cancelled_by_a_limit(n: int) -> str:
    _bodies.append("code")
    try:
        async with stepfast.timeout(0.01):
            await asyncio.Event().wait()
    except TimeoutError:
        pass
    return await plain(f"{n}")


def with_a_factory() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_task_factory(lambda loop, coro, **kwargs: asyncio.Task(coro, loop=loop, **kwargs))
    return loop


LOOPS = [asyncio.new_event_loop, with_a_factory]


@pytest.mark.parametrize("make_loop", LOOPS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("program", [cancelled_by_a_group, cancelled_by_a_limit], ids=lambda it: it.name)
def test_code_that_cancels_itself_goes_on_where_its_caller_runs_it(
    program: Workflow[..., Any],
    make_loop: Callable[[], asyncio.AbstractEventLoop],
    url: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        _bodies.clear()
        async with AsyncEngine(url) as engine:
            assert await engine.run(program, 7) == "7"
            assert await (await engine.start(program, 8)) == "8"
        assert _bodies == ["code", "7", "code", "8"]
        task = asyncio.current_task()
        assert task is not None and not task.cancelling()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())
    assert not [record for record in caplog.records if record.name == "asyncio"]


@workflow
async def waits_in_a_branch(n: int) -> int:
    async def waits() -> None:
        _bodies.append("begun")
        if _bodies.count("begun") == 1:
            _in_body.set()
            await asyncio.Event().wait()

    await asyncio.create_task(waits())
    return n


@pytest.mark.parametrize("make_loop", LOOPS, ids=lambda make: make.__name__)
def test_a_caller_of_several_branches_may_be_cancelled(
    make_loop: Callable[[], asyncio.AbstractEventLoop], url: str
) -> None:
    async def main() -> None:
        global _in_body
        _bodies.clear()
        _in_body = asyncio.Event()
        async with AsyncEngine(url) as engine:
            caller = asyncio.create_task(engine.run(waits_in_a_branch.options(workflow_id="it"), 7))
            await _in_body.wait()
            caller.cancel("by somebody")
            with pytest.raises(asyncio.CancelledError, match="by somebody"):
                await caller
            assert await (await engine.start(waits_in_a_branch.options(workflow_id="it"), 7)) == 7
        assert _bodies == ["begun", "begun"]

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())
