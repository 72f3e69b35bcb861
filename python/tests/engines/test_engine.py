"""What engines tell of executions, and how they start them."""

import asyncio
import logging
import threading
from datetime import UTC, datetime, timedelta

import pytest

from stepfast import (
    AsyncEngine,
    EncodeError,
    Engine,
    Error,
    Execution,
    InvalidArgument,
    NotFound,
    Queue,
    ReplayFilter,
    StepfastWarning,
    WorkflowCancelled,
    current,
    current_or_none,
    sleep,
    step,
    workflow,
)


@step
def doubled(n: int) -> int:
    return n * 2


@step(retries=1, backoff=0.0)
def fragile(n: int) -> int:
    raise ValueError(f"no {n}")


@workflow
def doubles(n: int, *, label: str = "") -> int:
    return doubled(n) + 1


@workflow
def breaks(n: int) -> int:
    return doubled(n) + fragile(n)


@workflow
def long_nap() -> None:
    sleep(hours=1)


@workflow
async def sleeps_long() -> None:
    await sleep(hours=1)


def test_an_execution_is_shown(url: str) -> None:
    with Engine(url) as engine:
        assert engine.run(doubles.options(workflow_id="it"), 20, label="x") == 41
        record = engine.show("it")
        assert record.execution.workflow_id == "it"
        assert record.execution.workflow == "doubles"
        assert record.execution.status == "completed"
        assert record.args == (20,) and record.kwargs == {"label": "x"}
        assert record.output == 41 and record.error is None
        (checkpoint,) = record.checkpoints
        assert (checkpoint.name, checkpoint.kind, checkpoint.value) == ("doubled", "step", 40)
        assert record.execution.ended_at is not None
        assert (
            record.execution.created_at <= checkpoint.recorded_at <= datetime.now(UTC) + timedelta(minutes=1)
        )
        assert record.execution.duration is not None and record.execution.duration >= timedelta(0)
        assert checkpoint.duration >= timedelta(0)


def test_what_failed_is_shown_with_its_attempts(url: str) -> None:
    with Engine(url) as engine:
        with pytest.raises(ValueError, match="no 3"):
            engine.run(breaks.options(workflow_id="bad"), 3)
        record = engine.show("bad")
        assert record.execution.status == "failed"
        assert isinstance(record.error, ValueError) and record.error.args == ("no 3",)
        assert [checkpoint.kind for checkpoint in record.checkpoints] == ["step", "failed"]
        assert isinstance(record.checkpoints[1].value, ValueError)
        assert [attempt.number for attempt in record.attempts] == [1]
        assert isinstance(record.attempts[0].error, ValueError)
        with pytest.raises(NotFound, match="nothing"):
            engine.show("nothing")


def test_executions_are_listed_and_counted(url: str) -> None:
    with Engine(url) as engine:
        for n in range(5):
            engine.run(doubles.options(workflow_id=f"d-{n}"), n)
        with pytest.raises(ValueError):
            engine.run(breaks.options(workflow_id="b-1"), 1)
        listed = engine.list()
        assert [execution.workflow_id for execution in listed] == ["b-1", "d-4", "d-3", "d-2", "d-1", "d-0"]
        assert all(isinstance(execution, Execution) for execution in listed)
        assert engine.count(status="completed") == 5
        assert engine.count(status=["completed", "failed"]) == 6
        assert [it.workflow_id for it in engine.list(status="failed")] == ["b-1"]
        assert [it.workflow_id for it in engine.list(workflow=doubles, limit=2)] == ["d-4", "d-3"]
        assert [it.workflow_id for it in engine.list(after="d-1", limit=5)] == ["d-0"]
        assert [it.workflow_id for it in engine.list(id_prefix="b-")] == ["b-1"]
        # clocks may be set back between two of them
        oldest = min(execution.created_at for execution in listed)
        assert engine.list(created_before=oldest) == []
        assert len(engine.list(created_from=oldest)) == 6
        with pytest.raises(InvalidArgument, match="finished.*is not a status"):
            engine.list(status="finished")


def test_executions_are_found_cancelled_and_resumed_by_id(url: str) -> None:
    with Engine(url) as engine:
        engine.start(long_nap.options(workflow_id="nap"))
        handle = engine.get("nap")
        with pytest.raises(TimeoutError, match="nap"):
            handle.result(timeout=0.01)
        assert engine.cancel("nap")
        with pytest.raises(WorkflowCancelled):
            handle.result()
        assert not engine.cancel("nap")
        assert engine.resume("nap")
        assert handle.status() in ("queued", "running", "waiting")
        assert handle.cancel()
        with pytest.raises(NotFound):
            engine.get("nobody")


def test_many_results_are_one_wait(url: str) -> None:
    with Engine(url) as engine:
        handles = [engine.start(doubles, n) for n in range(20)]
        assert engine.results(handles) == [2 * n + 1 for n in range(20)]
        bad = engine.start(breaks, 7)
        with pytest.raises(ValueError, match="no 7"):
            engine.results([handles[0], bad])
        first, second = engine.results([handles[0], bad], return_exceptions=True)
        assert first == 1 and isinstance(second, ValueError)
        assert engine.results([]) == []


def test_an_execution_has_a_limit_in_time(url: str) -> None:
    with Engine(url) as engine:
        handle = engine.start(long_nap.options(execution_timeout=0.05, workflow_id="short"))
        assert handle.workflow_id == "short"
        with pytest.raises(WorkflowCancelled, match="deadline"):
            handle.result()


def test_async_engines_have_the_same_face(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            assert await engine.run(doubles.options(workflow_id="it"), 20) == 41
            assert (await engine.show("it")).output == 41
            assert [it.workflow_id for it in await engine.list()] == ["it"]
            assert await engine.count() == 1
            handles = [await engine.start(doubles, n) for n in range(10)]
            assert await engine.results(handles) == [2 * n + 1 for n in range(10)]
            handle = await engine.start(sleeps_long.options(workflow_id="nap"))
            assert await engine.cancel("nap")
            with pytest.raises(WorkflowCancelled):
                await handle
            assert await engine.resume("nap")
            assert await (await engine.get("nap")).cancel()
            bad = await engine.start(breaks, 7)
            outcomes = await engine.results([handles[0], bad], return_exceptions=True)
            assert isinstance(outcomes[1], ValueError)

    asyncio.run(main())


def test_engines_do_not_start_anything_in_workflows(url: str) -> None:
    engine: Engine

    @workflow(name="starts by the engine")
    def starts(n: int) -> int:
        return engine.start(doubles, n).result()

    @workflow(name="runs by the engine")
    def runs(n: int) -> int:
        return engine.run(doubles, n)

    with Engine(url) as engine:
        with pytest.raises(InvalidArgument, match=r"write doubles\.start\(\.\.\.\)"):
            engine.run(starts, 1)
        with pytest.raises(InvalidArgument, match=r"write doubles\(\.\.\.\)"):
            engine.run(runs, 1)


def test_what_is_called_instead_of_given_is_refused() -> None:
    async def main() -> None:
        async with AsyncEngine("memory:") as engine:
            for call in (engine.start, engine.run):
                with (
                    pytest.warns(StepfastWarning, match="'sleeps_long' is called directly"),
                    pytest.raises(
                        InvalidArgument, match=r"is no workflow: give a workflow, then its arguments"
                    ),
                ):
                    await call(sleeps_long())  # type: ignore[call-overload]

    asyncio.run(main())
    with (
        Engine("memory:") as engine,
        pytest.warns(StepfastWarning, match="'doubles' is called directly"),
        pytest.raises(InvalidArgument, match=r"^3 is no workflow"),
    ):
        engine.start(doubles(1))  # type: ignore[call-overload]


@step
def locks(n: int) -> object:
    return [n, threading.Lock()]


@step
async def locks_async(n: int) -> object:
    return [n, threading.Lock()]


@workflow
def keeps_a_lock(n: int) -> object:
    return locks(n)


@workflow
async def keeps_a_lock_async(n: int) -> object:
    return await locks_async(n)


def test_a_value_that_cannot_be_recorded_is_named_with_its_step() -> None:
    with Engine("memory:") as engine, pytest.raises(EncodeError, match=r"^step 'locks': value\[1\] cannot"):
        engine.run(keeps_a_lock, 1)

    async def main() -> None:
        async with AsyncEngine("memory:") as engine:
            with pytest.raises(EncodeError, match=r"^step 'locks_async': value\[1\] cannot") as raised:
                await engine.run(keeps_a_lock_async, 1)
            assert raised.value.path == "value[1]"

    asyncio.run(main())


@workflow
def takes_anything(*args: object, **kwargs: object) -> None:
    pass


def test_arguments_that_cannot_be_recorded_are_named(url: str) -> None:
    with Engine(url) as engine:
        with pytest.raises(EncodeError, match=r"argument 2\[1\]") as raised:
            engine.start(takes_anything, 1, [2, object()])
        assert isinstance(raised.value, Error) and raised.value.code == "SF-0030"
        with pytest.raises(EncodeError, match=r"argument 'label'"):
            engine.start(takes_anything, 1, label=object())
        assert engine.count() == 0


@step
def who(n: int) -> list[str | None]:
    now = current()
    return [now.workflow_id, now.workflow, now.step, now.path, now.idempotency_key]


@workflow
def knows_itself(n: int) -> list[list[str | None]]:
    now = current()
    assert now.step is None and not now.is_replaying
    return [who(n), who(n), [now.workflow_id, now.workflow]]


@workflow
async def knows_itself_async(n: int) -> list[str | None]:
    return await who.in_thread(n)


def test_code_knows_its_execution(url: str) -> None:
    assert current_or_none() is None
    with Engine(url) as engine:
        first, second, own = engine.run(knows_itself.options(workflow_id="me"), 1)
        assert first == ["me", "knows_itself", "who", "1", "me/1"]
        assert second == ["me", "knows_itself", "who", "2", "me/2"]
        assert own == ["me", "knows_itself"]
        minted = engine.start(knows_itself, 1)
        assert minted.result()[0][0] == minted.workflow_id
    assert current_or_none() is None

    async def main() -> None:
        async with AsyncEngine(url) as engine:
            assert (await engine.run(knows_itself_async.options(workflow_id="you"), 1))[:3] == [
                "you",
                "knows_itself_async",
                "who",
            ]

    asyncio.run(main())


@step
def logs_in_step(n: int) -> int:
    logging.getLogger("shop").info("in the step")
    return n


@workflow
def logs(n: int) -> int:
    logging.getLogger("shop").info("in the workflow")
    logs_in_step(n)
    sleep(0.05)
    return n


def test_log_records_know_their_execution(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    # so that it is suspended by its sleep, and repeats what it has logged
    with Engine(url, suspend_after=0.001) as engine:
        engine.start(logs.options(workflow_id="logged"), 1).result()
        logging.getLogger("shop").info("outside")
    seen = [
        (it.message, it.stepfast_workflow_id, it.stepfast_step, it.stepfast_is_replaying)
        for it in caplog.records
        if it.name == "shop"
    ]
    assert seen == [
        ("in the workflow", "logged", "", False),
        ("in the step", "logged", "logs_in_step", False),
        ("in the workflow", "logged", "", True),
        ("outside", "", "", False),
    ]
    kept = [it for it in caplog.records if it.name == "shop" and ReplayFilter().filter(it)]
    assert len(kept) == 3


def test_options_that_are_given_as_arguments_are_refused_with_advice(url: str) -> None:
    advice = (
        r"unexpected keyword argument 'workflow_id'; options of the start belong in doubles.options\(\.\.\.\)"
    )
    with Engine(url) as engine:
        for call in [engine.start, engine.run]:
            with pytest.raises(TypeError, match=advice):
                call(doubles, 1, workflow_id="twice")
            with pytest.raises(TypeError, match=advice):
                call(doubles.options(wait_timeout=60), 1, workflow_id="twice")

    async def main() -> None:
        async with AsyncEngine("memory:") as other:
            with pytest.raises(TypeError, match=advice):
                await other.run(doubles.options(execution_timeout=60), 1, workflow_id="twice")  # type: ignore[call-arg]

    asyncio.run(main())


@workflow
def takes_an_id(workflow_id: str, queue: str = "none") -> str:
    return f"{workflow_id} {queue}"


def test_a_parameter_may_have_the_name_of_an_option(url: str) -> None:
    with Engine(url) as engine:
        assert engine.run(takes_an_id, workflow_id="a") == "a none"
        handle = engine.start(takes_an_id.options(workflow_id="b"), workflow_id="a", queue="q")
        assert (handle.workflow_id, handle.result()) == ("b", "a q")


def test_later_options_win(url: str) -> None:
    with Engine(url, queues=[Queue("a"), Queue("b")]) as engine:
        first = doubles.options(queue="a", key="k", priority=1)
        handle = engine.start(first.options(queue="b", priority=None, workflow_id="w"), 4)
        assert handle.result() == 9
        row = engine.show("w").execution
        assert (row.queue, row.key, row.priority) == ("b", "k", 0)
        engine.start(first, 4).result()
        assert engine.count(queue="a") == 1


def test_what_has_failed_is_told_with_whose_it_is(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stepfast")
    with Engine(url) as engine, pytest.raises(ValueError, match="no 2"):
        engine.run(breaks.options(workflow_id="told"), 2)
    told = [it.getMessage() for it in caplog.records if it.name == "stepfast"]
    whose = "(workflow 'breaks', workflow_id 'told')"
    assert told == [
        f"attempt 1 of step 'fragile' has failed; the next one begins in 0 s {whose}",
        f"attempt 2 of step 'fragile' has failed; no further one follows {whose}",
        "workflow 'breaks' has failed (workflow_id 'told')",
    ]
