"""Starts, records, lists, cancels and log records of executions by `Engine` and `AsyncEngine`."""

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
def double(n: int) -> int:
    return n * 2


@step(retries=1, backoff=0.0)
def fail_with_number(n: int) -> int:
    raise ValueError(f"no {n}")


@workflow
def double_and_add_one(n: int, *, label: str = "") -> int:
    return double(n) + 1


@workflow
def double_then_fail(n: int) -> int:
    return double(n) + fail_with_number(n)


@workflow
def sleep_one_hour() -> None:
    sleep(hours=1)


@workflow
async def sleep_one_hour_async() -> None:
    await sleep(hours=1)


def test_show_returns_record_of_execution(url: str) -> None:
    with Engine(url) as engine:
        assert engine.run(double_and_add_one.options(workflow_id="it"), 20, label="x") == 41
        record = engine.show("it")
        assert record.execution.workflow_id == "it"
        assert record.execution.workflow == "double_and_add_one"
        assert record.execution.status == "completed"
        assert record.args == (20,) and record.kwargs == {"label": "x"}
        assert record.output == 41 and record.error is None
        (checkpoint,) = record.checkpoints
        assert (checkpoint.name, checkpoint.kind, checkpoint.value) == ("double", "step", 40)
        assert record.execution.ended_at is not None
        assert (
            record.execution.created_at <= checkpoint.recorded_at <= datetime.now(UTC) + timedelta(minutes=1)
        )
        assert record.execution.duration is not None and record.execution.duration >= timedelta(0)
        assert checkpoint.duration >= timedelta(0)


def test_show_returns_failure_and_attempts(url: str) -> None:
    with Engine(url) as engine:
        with pytest.raises(ValueError, match="no 3"):
            engine.run(double_then_fail.options(workflow_id="bad"), 3)
        record = engine.show("bad")
        assert record.execution.status == "failed"
        assert isinstance(record.error, ValueError) and record.error.args == ("no 3",)
        assert [checkpoint.kind for checkpoint in record.checkpoints] == ["step", "failed"]
        assert isinstance(record.checkpoints[1].value, ValueError)
        assert [attempt.number for attempt in record.attempts] == [1]
        assert isinstance(record.attempts[0].error, ValueError)
        with pytest.raises(NotFound, match="nothing"):
            engine.show("nothing")


def test_conditions_filter_lists_and_counts(url: str) -> None:
    with Engine(url) as engine:
        for n in range(5):
            engine.run(double_and_add_one.options(workflow_id=f"d-{n}"), n)
        with pytest.raises(ValueError):
            engine.run(double_then_fail.options(workflow_id="b-1"), 1)
        listed = engine.list()
        assert [execution.workflow_id for execution in listed] == ["b-1", "d-4", "d-3", "d-2", "d-1", "d-0"]
        assert all(isinstance(execution, Execution) for execution in listed)
        assert engine.count(status="completed") == 5
        assert engine.count(status=["completed", "failed"]) == 6
        assert [it.workflow_id for it in engine.list(status="failed")] == ["b-1"]
        assert [it.workflow_id for it in engine.list(workflow=double_and_add_one, limit=2)] == ["d-4", "d-3"]
        assert [it.workflow_id for it in engine.list(after="d-1", limit=5)] == ["d-0"]
        assert [it.workflow_id for it in engine.list(id_prefix="b-")] == ["b-1"]
        # the clock may be set back between two starts
        oldest = min(execution.created_at for execution in listed)
        assert engine.list(created_before=oldest) == []
        assert len(engine.list(created_from=oldest)) == 6
        with pytest.raises(InvalidArgument, match="finished.*is not a status"):
            engine.list(status="finished")


def test_executions_are_cancelled_and_resumed_by_id(url: str) -> None:
    with Engine(url) as engine:
        engine.start(sleep_one_hour.options(workflow_id="nap"))
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
            engine.get("missing")


def test_results_waits_for_many_handles(url: str) -> None:
    with Engine(url) as engine:
        handles = [engine.start(double_and_add_one, n) for n in range(20)]
        assert engine.results(handles) == [2 * n + 1 for n in range(20)]
        bad = engine.start(double_then_fail, 7)
        with pytest.raises(ValueError, match="no 7"):
            engine.results([handles[0], bad])
        first, second = engine.results([handles[0], bad], return_exceptions=True)
        assert first == 1 and isinstance(second, ValueError)
        assert engine.results([]) == []


def test_execution_timeout_cancels_execution(url: str) -> None:
    with Engine(url) as engine:
        handle = engine.start(sleep_one_hour.options(execution_timeout=0.05, workflow_id="short"))
        assert handle.workflow_id == "short"
        with pytest.raises(WorkflowCancelled, match="deadline"):
            handle.result()


def test_async_engine_has_methods_of_engine(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            assert await engine.run(double_and_add_one.options(workflow_id="it"), 20) == 41
            assert (await engine.show("it")).output == 41
            assert [it.workflow_id for it in await engine.list()] == ["it"]
            assert await engine.count() == 1
            handles = [await engine.start(double_and_add_one, n) for n in range(10)]
            assert await engine.results(handles) == [2 * n + 1 for n in range(10)]
            handle = await engine.start(sleep_one_hour_async.options(workflow_id="nap"))
            assert await engine.cancel("nap")
            with pytest.raises(WorkflowCancelled):
                await handle
            assert await engine.resume("nap")
            assert await (await engine.get("nap")).cancel()
            bad = await engine.start(double_then_fail, 7)
            outcomes = await engine.results([handles[0], bad], return_exceptions=True)
            assert isinstance(outcomes[1], ValueError)

    asyncio.run(main())


def test_engine_refuses_starts_from_workflow_code(url: str) -> None:
    engine: Engine

    @workflow(name="starts by the engine")
    def start_by_engine(n: int) -> int:
        return engine.start(double_and_add_one, n).result()

    @workflow(name="runs by the engine")
    def run_by_engine(n: int) -> int:
        return engine.run(double_and_add_one, n)

    with Engine(url) as engine:
        with pytest.raises(InvalidArgument, match=r"write double_and_add_one\.start\(\.\.\.\)"):
            engine.run(start_by_engine, 1)
        with pytest.raises(InvalidArgument, match=r"write double_and_add_one\(\.\.\.\)"):
            engine.run(run_by_engine, 1)


def test_output_of_direct_call_is_refused_as_workflow() -> None:
    async def main() -> None:
        async with AsyncEngine("memory:") as engine:
            for call in (engine.start, engine.run):
                with (
                    pytest.warns(StepfastWarning, match="'sleep_one_hour_async' is called directly"),
                    pytest.raises(
                        InvalidArgument, match=r"is no workflow: give a workflow, then its arguments"
                    ),
                ):
                    await call(sleep_one_hour_async())  # type: ignore[call-overload]

    asyncio.run(main())
    with (
        Engine("memory:") as engine,
        pytest.warns(StepfastWarning, match="'double_and_add_one' is called directly"),
        pytest.raises(InvalidArgument, match=r"^3 is no workflow"),
    ):
        engine.start(double_and_add_one(1))  # type: ignore[call-overload]


@step
def return_lock(n: int) -> object:
    return [n, threading.Lock()]


@step
async def return_lock_async(n: int) -> object:
    return [n, threading.Lock()]


@workflow
def run_lock_step(n: int) -> object:
    return return_lock(n)


@workflow
async def run_lock_step_async(n: int) -> object:
    return await return_lock_async(n)


def test_encode_error_names_step_and_value() -> None:
    with (
        Engine("memory:") as engine,
        pytest.raises(EncodeError, match=r"^step 'return_lock': value\[1\] cannot"),
    ):
        engine.run(run_lock_step, 1)

    async def main() -> None:
        async with AsyncEngine("memory:") as engine:
            with pytest.raises(EncodeError, match=r"^step 'return_lock_async': value\[1\] cannot") as raised:
                await engine.run(run_lock_step_async, 1)
            assert raised.value.path == "value[1]"

    asyncio.run(main())


@workflow
def accept_any_arguments(*args: object, **kwargs: object) -> None:
    pass


def test_encode_error_names_argument(url: str) -> None:
    with Engine(url) as engine:
        with pytest.raises(EncodeError, match=r"argument 2\[1\]") as raised:
            engine.start(accept_any_arguments, 1, [2, object()])
        assert isinstance(raised.value, Error) and raised.value.code == "SF-0030"
        with pytest.raises(EncodeError, match=r"argument 'label'"):
            engine.start(accept_any_arguments, 1, label=object())
        assert engine.count() == 0


@step
def describe_step(n: int) -> list[str | None]:
    context = current()
    return [context.workflow_id, context.workflow, context.step, context.path, context.idempotency_key]


@workflow
def describe_execution(n: int) -> list[list[str | None]]:
    context = current()
    assert context.step is None and not context.is_replaying
    return [describe_step(n), describe_step(n), [context.workflow_id, context.workflow]]


@workflow
async def describe_execution_async(n: int) -> list[str | None]:
    return await describe_step.in_thread(n)


def test_current_describes_execution_and_step(url: str) -> None:
    assert current_or_none() is None
    with Engine(url) as engine:
        first, second, of_workflow = engine.run(describe_execution.options(workflow_id="me"), 1)
        assert first == ["me", "describe_execution", "describe_step", "1", "me/1"]
        assert second == ["me", "describe_execution", "describe_step", "2", "me/2"]
        assert of_workflow == ["me", "describe_execution"]
        unnamed = engine.start(describe_execution, 1)
        assert unnamed.result()[0][0] == unnamed.workflow_id
    assert current_or_none() is None

    async def main() -> None:
        async with AsyncEngine(url) as engine:
            assert (await engine.run(describe_execution_async.options(workflow_id="you"), 1))[:3] == [
                "you",
                "describe_execution_async",
                "describe_step",
            ]

    asyncio.run(main())


@step
def log_in_step(n: int) -> int:
    logging.getLogger("shop").info("in the step")
    return n


@workflow
def log_in_workflow(n: int) -> int:
    logging.getLogger("shop").info("in the workflow")
    log_in_step(n)
    sleep(0.05)
    return n


def test_log_records_have_attributes_of_their_execution(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    # the sleep suspends the execution, so that its replay repeats the log call
    with Engine(url, suspend_after=0.001) as engine:
        engine.start(log_in_workflow.options(workflow_id="logged"), 1).result()
        logging.getLogger("shop").info("outside")
    logged = [
        (it.message, it.stepfast_workflow_id, it.stepfast_step, it.stepfast_is_replaying)
        for it in caplog.records
        if it.name == "shop"
    ]
    assert logged == [
        ("in the workflow", "logged", "", False),
        ("in the step", "logged", "log_in_step", False),
        ("in the workflow", "logged", "", True),
        ("outside", "", "", False),
    ]
    filtered = [it for it in caplog.records if it.name == "shop" and ReplayFilter().filter(it)]
    assert len(filtered) == 3


def test_options_among_arguments_are_refused_with_advice(url: str) -> None:
    advice = (
        r"unexpected keyword argument 'workflow_id'; "
        r"options of the start belong in double_and_add_one.options\(\.\.\.\)"
    )
    with Engine(url) as engine:
        for call in [engine.start, engine.run]:
            with pytest.raises(TypeError, match=advice):
                call(double_and_add_one, 1, workflow_id="twice")
            with pytest.raises(TypeError, match=advice):
                call(double_and_add_one.options(wait_timeout=60), 1, workflow_id="twice")

    async def main() -> None:
        async with AsyncEngine("memory:") as other:
            with pytest.raises(TypeError, match=advice):
                await other.run(double_and_add_one.options(execution_timeout=60), 1, workflow_id="twice")  # type: ignore[call-arg]

    asyncio.run(main())


@workflow
def join_id_and_queue(workflow_id: str, queue: str = "none") -> str:
    return f"{workflow_id} {queue}"


def test_parameter_can_have_name_of_option(url: str) -> None:
    with Engine(url) as engine:
        assert engine.run(join_id_and_queue, workflow_id="a") == "a none"
        handle = engine.start(join_id_and_queue.options(workflow_id="b"), workflow_id="a", queue="q")
        assert (handle.workflow_id, handle.result()) == ("b", "a q")


def test_later_options_override_earlier_options(url: str) -> None:
    with Engine(url, queues=[Queue("a"), Queue("b")]) as engine:
        first = double_and_add_one.options(queue="a", key="k", priority=1)
        handle = engine.start(first.options(queue="b", priority=None, workflow_id="w"), 4)
        assert handle.result() == 9
        row = engine.show("w").execution
        assert (row.queue, row.key, row.priority) == ("b", "k", 0)
        engine.start(first, 4).result()
        assert engine.count(queue="a") == 1


def test_failure_logs_name_workflow_and_execution(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stepfast")
    with Engine(url) as engine, pytest.raises(ValueError, match="no 2"):
        engine.run(double_then_fail.options(workflow_id="failing"), 2)
    messages = [it.getMessage() for it in caplog.records if it.name == "stepfast"]
    execution = "(workflow 'double_then_fail', workflow_id 'failing')"
    assert messages == [
        f"attempt 1 of step 'fail_with_number' has failed; the next one begins in 0 s {execution}",
        f"attempt 2 of step 'fail_with_number' has failed; no further one follows {execution}",
        "workflow 'double_then_fail' has failed (workflow_id 'failing')",
    ]
