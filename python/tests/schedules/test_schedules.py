"""Schedules: their executions, their changes, and the engines and clients that declare them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, cast

import pytest
from watched_process import HANG_TIMEOUT

from stepfast import (
    AsyncClient,
    AsyncEngine,
    CatchUp,
    Client,
    Conflict,
    Engine,
    Graph,
    InvalidArgument,
    NotFound,
    Overlap,
    Queue,
    RemoteWorkflow,
    Schedule,
    ScheduleConflict,
    ScheduleInfo,
    ScheduleNotFound,
    current,
    sleep,
    step,
    workflow,
)

SECOND, DAY = timedelta(seconds=1), timedelta(days=1)
#: A cron expression without an instant during the tests, unless they run on New Year's Eve.
ONCE_A_YEAR = "0 0 1 1 *"


@step
def reads_instant_in_step() -> datetime | None:
    return current().scheduled_at


@workflow
def reads_instant(number: int, unit: str = "kg") -> tuple[int, str, datetime | None]:
    instant = current().scheduled_at
    assert reads_instant_in_step() == instant
    return number, unit, instant


@workflow
async def reads_instant_async(number: int) -> tuple[int, datetime | None]:
    return number, current().scheduled_at


@workflow
def child_reads_instant() -> datetime | None:
    return reads_instant(1)[2]


@workflow
def fails_on_schedule() -> None:
    raise ValueError("the source is empty")


@workflow
def sleeps_on_schedule() -> None:
    sleep(HANG_TIMEOUT)


@workflow
def changes_schedules() -> list[str]:
    return refusals(current_engine[0])


@workflow
async def changes_schedules_async() -> list[str]:
    return [str(await refusal(current_async_engine[0]))]


#: The engines that the code of the two workflows above calls.
current_engine: list[Engine] = []
current_async_engine: list[AsyncEngine] = []


def refusals(engine: Engine) -> list[str]:
    """Returns the errors of all operations on schedules."""
    now = datetime.now(UTC)
    operations: list[Callable[[], object]] = [
        lambda: engine.set_schedule(Schedule("s", reads_instant, 1, every=1)),
        lambda: engine.schedule("s"),
        engine.schedules,
        lambda: engine.pause_schedule("s"),
        lambda: engine.resume_schedule("s"),
        lambda: engine.delete_schedule("s"),
        lambda: engine.trigger_schedule("s"),
        lambda: engine.backfill_schedule("s", now - DAY, now),
    ]
    errors: list[str] = []
    for operation in operations:
        try:
            operation()
        except InvalidArgument as error:
            errors.append(str(error))
    return errors


async def refusal(engine: AsyncEngine) -> InvalidArgument | None:
    try:
        await engine.trigger_schedule("s")
    except InvalidArgument as error:
        return error
    return None


def wait_for(engine: Client, name: str, is_met: Callable[[ScheduleInfo], bool]) -> ScheduleInfo:
    """Waits until the state of a schedule fulfils a condition."""
    deadline = time.monotonic() + HANG_TIMEOUT
    while not is_met(info := engine.schedule(name)):
        assert time.monotonic() < deadline, info
        time.sleep(0.01)
    return info


async def wait_for_async(
    engine: AsyncClient, name: str, is_met: Callable[[ScheduleInfo], bool]
) -> ScheduleInfo:
    """Waits until the state of a schedule fulfils a condition."""
    deadline = time.monotonic() + HANG_TIMEOUT
    while not is_met(info := await engine.schedule(name)):
        assert time.monotonic() < deadline, info
        await asyncio.sleep(0.01)
    return info


def ids_of(engine: Client, name: str) -> list[str]:
    """Returns the workflow_ids of the executions of a schedule, the first instant first."""
    return sorted(it.workflow_id for it in engine.list(attributes={"schedule": name}, limit=1_000))


def results_of(engine: Client, name: str) -> list[Any]:
    """Waits for the executions of a schedule, and returns their outputs, the first instant first."""
    return engine.results([engine.get(workflow_id) for workflow_id in ids_of(engine, name)])


def test_each_instant_gets_one_execution(url: str) -> None:
    options = reads_instant.options(
        queue="ticks", key="eu", priority=3, execution_timeout=60, attributes={"tenant": "acme"}
    )
    # a slow machine skips no instant
    schedule = Schedule(
        "ticks", options, 7, every=SECOND, kwargs={"unit": "mg"}, overlap="allow", catch_up="all"
    )
    with Engine(url, queues=[Queue("ticks")], schedules=[schedule]) as engine:
        info = wait_for(engine, "ticks", lambda info: info.started >= 3)
        engine.delete_schedule("ticks")
        assert (info.args, info.kwargs, info.every, info.error) == ((7,), {"unit": "mg"}, SECOND, None)
        outputs = results_of(engine, "ticks")
        ids = ids_of(engine, "ticks")
        executions = engine.list(attributes={"schedule": "ticks", "tenant": "acme"})
    instants = [instant for _, _, instant in outputs]
    assert instants == [instants[0] + n * SECOND for n in range(len(instants))]
    assert [(number, unit) for number, unit, _ in outputs] == [(7, "mg")] * len(outputs)
    assert ids == [f"ticks@{instant:%Y-%m-%dT%H:%M:%SZ}" for instant in instants]
    for execution in executions:
        assert (execution.queue, execution.key, execution.priority) == ("ticks", "eu", 3)
        assert execution.deadline_at is not None
        assert execution.attributes == {"schedule": "ticks", "tenant": "acme"}
    assert len(executions) == len(ids)


def test_code_reads_its_instant(url: str) -> None:
    with Engine(url) as engine:
        at = datetime.now(UTC).replace(microsecond=7) + 3 * SECOND
        engine.set_schedule(Schedule("once", reads_instant, 1, at=at))
        assert engine.schedule("once").next == at
        info = wait_for(engine, "once", lambda info: info.started == 1)
        assert (info.at, info.last_started, info.next) == (at, at, None)
        assert results_of(engine, "once") == [(1, "kg", at)]
        # neither a trigger nor a child nor a plain start has an instant
        assert engine.trigger_schedule("once").result(HANG_TIMEOUT)[2] is None
        assert engine.run(reads_instant, 1)[2] is None
        child = Schedule("child", child_reads_instant, cron=ONCE_A_YEAR)
        engine.set_schedule(child)
        assert engine.trigger_schedule("child").result(HANG_TIMEOUT) is None


def test_stored_values_are_shown(sqlite_url: str) -> None:
    starts_at, ends_at = datetime(2050, 1, 1, tzinfo=UTC), datetime(2051, 1, 1, 12, tzinfo=UTC)
    target = RemoteWorkflow("elsewhere").options(
        queue="reports",
        key="k",
        priority=-1,
        execution_timeout=timedelta(hours=1),
        run_timeout=90,
        attributes={"b": "2", "a": "1"},
    )
    schedule = Schedule(
        "all values",
        target,
        "all",
        cron="0 30 2 * * *",
        timezone="Europe/Berlin",
        overlap="buffer_one",
        catch_up="all",
        jitter=0.5,
        starts_at=starts_at,
        ends_at=ends_at,
        pause_after=3,
        kwargs={"region": "eu"},
    )
    with Client(sqlite_url, queues=[Queue("reports")], schedules=[schedule]) as client:
        client.pause_schedule("all values", "maintenance")
        assert client.schedule("all values") == ScheduleInfo(
            name="all values",
            workflow="elsewhere",
            args=("all",),
            kwargs={"region": "eu"},
            cron="0 30 2 * * *",
            every=None,
            at=None,
            timezone="Europe/Berlin",
            overlap="buffer_one",
            catch_up="all",
            jitter=timedelta(seconds=0.5),
            starts_at=starts_at,
            ends_at=ends_at,
            pause_after=3,
            queue="reports",
            key="k",
            priority=-1,
            execution_timeout=timedelta(hours=1),
            run_timeout=timedelta(seconds=90),
            attributes={"a": "1", "b": "2"},
            is_paused=True,
            pause_reason="maintenance",
            paused_itself=False,
            next=None,
            last_started=None,
            started=0,
            skipped=0,
            skips=(),
            buffered=0,
            backfills=0,
            failures=0,
            error=None,
            workflow_id="schedule:all values",
            stopped=None,
            is_late=False,
        )
        client.resume_schedule("all values")
        info = client.schedule("all values")
        assert (info.is_paused, info.pause_reason) == (False, None)
        # half past two in Berlin
        assert info.next == datetime(2050, 1, 1, 1, 30, tzinfo=UTC)


def test_all_policies_are_stored(sqlite_url: str) -> None:
    overlaps: list[Overlap] = ["skip", "buffer_one", "buffer_all", "cancel_running", "allow"]
    catch_ups: list[CatchUp] = ["none", "last", "all"]
    with Client(sqlite_url) as client:
        for overlap in overlaps:
            for catch_up in catch_ups:
                client.set_schedule(
                    Schedule("s", reads_instant, 1, every=DAY, overlap=overlap, catch_up=catch_up)
                )
                info = client.schedule("s")
                assert (info.overlap, info.catch_up, info.timezone) == (overlap, catch_up, None)
        client.set_schedule(Schedule("s", reads_instant, 1, cron="@daily"))
        info = client.schedule("s")
        assert (info.cron, info.timezone, info.every) == ("@daily", "UTC", None)
        assert [info.name for info in client.schedules()] == ["s"]


def test_running_execution_is_cancelled(sqlite_url: str) -> None:
    with Engine(sqlite_url) as engine:
        engine.set_schedule(Schedule("s", sleeps_on_schedule, every=1, overlap="cancel_running"))
        wait_for(engine, "s", lambda info: info.started >= 2)
        engine.delete_schedule("s")
        statuses = [engine.show(workflow_id).execution.status for workflow_id in ids_of(engine, "s")]
        assert statuses[0] == "cancelled"
        engine.cancel_all(attributes={"schedule": "s"})


def test_instants_are_skipped_while_an_execution_runs(sqlite_url: str) -> None:
    with Engine(sqlite_url) as engine:
        engine.set_schedule(Schedule("s", sleeps_on_schedule, every=1))
        info = wait_for(engine, "s", lambda info: info.skipped >= 1)
        assert info.started == 1
        assert len(info.skips) == info.skipped
        assert info.last_started is not None and info.skips[0] > info.last_started
        engine.delete_schedule("s")
        assert engine.cancel_all(attributes={"schedule": "s"}).not_applicable == 0


def test_failures_pause_a_schedule(url: str) -> None:
    with Engine(url) as engine:
        engine.set_schedule(Schedule("s", fails_on_schedule, every=1, pause_after=1))
        info = wait_for(engine, "s", lambda info: info.is_paused)
        assert (info.paused_itself, info.failures, info.next) == (True, 1, None)
        assert info.pause_reason == "an execution failed"
        engine.resume_schedule("s")
        info = engine.schedule("s")
        assert (info.is_paused, info.paused_itself) == (False, False)


def test_paused_schedule_can_be_triggered(url: str) -> None:
    with Engine(url, schedules=[Schedule("s", reads_instant, 2, cron=ONCE_A_YEAR)]) as engine:
        engine.pause_schedule("s")
        assert engine.schedule("s").pause_reason == ""
        handle = engine.trigger_schedule("s")
        assert handle.workflow_id.startswith("s@trigger-")
        assert handle.result(HANG_TIMEOUT) == (2, "kg", None)
        assert engine.schedule("s").started == 1


def test_range_of_the_past_is_backfilled(url: str) -> None:
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    schedule = Schedule("days", reads_instant, 1, cron="0 0 * * *", starts_at=midnight - 30 * DAY)
    with Engine(url, schedules=[schedule]) as engine:
        assert engine.backfill_schedule("days", midnight - 3 * DAY, midnight - SECOND) == 3
        wait_for(engine, "days", lambda info: info.started == 3)
        instants = [instant for _, _, instant in results_of(engine, "days")]
        assert instants == [midnight - n * DAY for n in (3, 2, 1)]
        # instants that have an execution get no other
        assert engine.backfill_schedule("days", midnight - 4 * DAY, midnight - 2 * DAY) == 3
        info = wait_for(engine, "days", lambda info: info.started == 4 and info.backfills == 0)
        assert len(results_of(engine, "days")) == 4
        assert info.error is None
        now = datetime.now(UTC)
        for start, end, reason in [
            (now - DAY, now + DAY, r"range: ends in the future"),
            (midnight + SECOND, midnight + SECOND, r"range: has no instant of schedule \"days\""),
            (now, now - DAY, r"range: begins at .*, after its end"),
            (datetime(2026, 1, 1), now, r"start is datetime.*with a time zone"),
            (now - DAY, datetime(2026, 1, 1), r"end is datetime.*with a time zone"),
            (now - DAY, 7, r"end is 7"),
        ]:
            with pytest.raises(InvalidArgument, match=reason):
                engine.backfill_schedule("days", start, cast("datetime", end))


def test_declared_schedules_follow_their_conflict_policy(url: str) -> None:
    def declared(days: int, policy: Literal["update", "keep", "reject"]) -> list[Schedule]:
        return [Schedule("s", reads_instant, 1, every=days * DAY, on_conflict=policy)]

    def stored_days(engine: Client) -> float:
        every = engine.schedule("s").every
        assert every is not None
        return every / DAY

    for opened in (Engine, Client):
        with opened(url, schedules=declared(1, "update")) as engine:
            assert stored_days(engine) == 1
        with opened(url, schedules=declared(2, "keep")) as engine:
            assert stored_days(engine) == 1
        with pytest.raises(ScheduleConflict, match="'s'|\"s\"") as raised:
            opened(url, schedules=declared(2, "reject"))
        assert raised.value.code == "SF-0045" and isinstance(raised.value, Conflict)
        assert 'another on_conflict than "reject"' in str(raised.value)
        with opened(url, schedules=declared(1, "reject")) as engine:
            assert stored_days(engine) == 1
        with opened(url, schedules=declared(2, "update")) as engine:
            assert stored_days(engine) == 2


def test_declaration_stays_valid_after_its_last_instant(url: str) -> None:
    with Engine(url) as engine:
        once = Schedule("once", reads_instant, 1, at=datetime.now(UTC) + 3 * SECOND)
        engine.set_schedule(once)
        wait_for(engine, "once", lambda info: info.started == 1)
    with Engine(url, schedules=[once]) as engine:
        assert engine.schedule("once").started == 1
        changed = Schedule("once", reads_instant, 2, at=datetime.now(UTC) - DAY)
        with pytest.raises(InvalidArgument, match="has no instant after now"):
            engine.set_schedule(changed)


def test_unknown_schedules_are_not_found(url: str) -> None:
    now = datetime.now(UTC)
    with Engine(url) as engine:
        engine.set_schedule(Schedule("gone", reads_instant, 1, every=DAY))
        engine.delete_schedule("gone")
        for name in ("gone", "never"):
            operations: list[Callable[[], object]] = [
                lambda name=name: engine.schedule(name),  # type: ignore[misc]
                lambda name=name: engine.pause_schedule(name),  # type: ignore[misc]
                lambda name=name: engine.resume_schedule(name),  # type: ignore[misc]
                lambda name=name: engine.delete_schedule(name),  # type: ignore[misc]
                lambda name=name: engine.trigger_schedule(name),  # type: ignore[misc]
                lambda name=name: engine.backfill_schedule(name, now - DAY, now),  # type: ignore[misc]
            ]
            for operation in operations:
                with pytest.raises(ScheduleNotFound, match="engine.set_schedule") as raised:
                    operation()
                assert raised.value.code == "SF-0044" and isinstance(raised.value, NotFound)
        assert engine.schedules() == []
        # a deleted schedule can be set again
        engine.set_schedule(Schedule("gone", reads_instant, 1, every=DAY))
        assert [info.name for info in engine.schedules()] == ["gone"]


def test_client_changes_schedules_without_a_worker(url: str) -> None:
    with Client(url) as client:
        client.set_schedule(Schedule("b", RemoteWorkflow("unknown"), every=DAY))
        client.set_schedule(Schedule("a", reads_instant, 1, cron=ONCE_A_YEAR))
        client.set_schedule(Schedule("a", reads_instant, 2, cron=ONCE_A_YEAR))
        client.pause_schedule("a", "no worker yet")
        assert [(info.name, info.args) for info in client.schedules()] == [("a", (2,)), ("b", ())]
        assert client.schedule("a").pause_reason == "no worker yet"
        client.delete_schedule("b")
        triggered: list[Any] = []
        thread = threading.Thread(target=lambda: triggered.append(client.trigger_schedule("a")))
        thread.start()
        with Engine(url) as engine:
            thread.join(HANG_TIMEOUT)
            assert triggered[0].result(HANG_TIMEOUT) == (2, "kg", None)
            assert [info.name for info in engine.schedules()] == ["a"]
            assert engine.schedule("a").is_paused


def test_workflow_of_a_schedule_is_in_another_program(url: str) -> None:
    with Engine(url) as engine:
        engine.set_schedule(Schedule("s", RemoteWorkflow("scheduled elsewhere"), "tea", every=1))
        info = wait_for(engine, "s", lambda info: info.started == 1)
        assert info.workflow == "scheduled elsewhere"
        engine.pause_schedule("s")
        (first, *_) = ids_of(engine, "s")

        @workflow(name="scheduled elsewhere")
        def scheduled_elsewhere(item: str) -> str:
            return f"[{item}]"

        # an engine that opened before has no code of the workflow
        with Engine(url):
            assert engine.get(first).result(HANG_TIMEOUT) == "[tea]"


def test_graph_runs_on_a_schedule(sqlite_url: str) -> None:
    graph = Graph("scheduled graph")

    @graph.task
    def doubled(number: int) -> int:
        return 2 * number

    # the parameters of a graph are known when it is complete
    wrong, right = (Schedule("s", graph, every=DAY, kwargs={name: 4}) for name in ("weight", "number"))
    with pytest.raises(TypeError, match="the arguments do not fit graph 'scheduled graph'"):
        Engine(sqlite_url, schedules=[wrong])
    with Engine(sqlite_url, schedules=[right]) as engine:
        assert engine.trigger_schedule("s").result(HANG_TIMEOUT) == 8
        with pytest.raises(TypeError, match="the arguments do not fit graph 'scheduled graph'"):
            engine.set_schedule(wrong)


def test_engine_needs_the_workflow(sqlite_url: str) -> None:
    schedule = Schedule("s", reads_instant_async, 1, every=DAY)
    with pytest.raises(InvalidArgument, match="is async.*use an AsyncEngine"):
        Engine(sqlite_url, schedules=[schedule])
    with Engine(sqlite_url) as engine:
        with pytest.raises(InvalidArgument, match="is async.*use an AsyncEngine"):
            engine.set_schedule(schedule)

        @workflow
        def defined_after_opening() -> None:
            pass

        with pytest.raises(InvalidArgument, match="defined after the engine was opened"):
            engine.set_schedule(Schedule("s", defined_after_opening, every=DAY))
        with pytest.raises(NotFound, match="queue \"?'?no such queue"):
            engine.set_schedule(Schedule("s", reads_instant.options(queue="no such queue"), 1, every=DAY))
        with pytest.raises(InvalidArgument, match="the limit for schedules is 32768"):
            engine.set_schedule(Schedule("s", reads_instant, 1, every=DAY, kwargs={"unit": "x" * 40_000}))
        assert engine.schedules() == []


def test_schedules_are_not_changed_in_workflows(sqlite_url: str) -> None:
    with Engine(sqlite_url) as engine:
        current_engine[:] = [engine]
        errors = engine.run(changes_schedules)
        assert len(errors) == 8
        assert all("in the code of a workflow" in error for error in errors), errors

    async def main() -> list[str]:
        async with AsyncEngine(sqlite_url) as engine:
            current_async_engine[:] = [engine]
            return await engine.run(changes_schedules_async)

    assert "in the code of a workflow" in asyncio.run(main())[0]


def test_async_engine_has_schedules(url: str) -> None:
    async def main() -> None:
        now = datetime.now(UTC)
        schedule = Schedule("s", reads_instant_async, 5, every=1)
        async with AsyncEngine(url, schedules=[schedule]) as engine:
            info = await wait_for_async(engine, "s", lambda info: info.started >= 2)
            assert info.args == (5,)
            await engine.pause_schedule("s", "enough")
            assert (await engine.schedule("s")).pause_reason == "enough"
            executions = await engine.list(attributes={"schedule": "s"})
            first = min(it.workflow_id for it in executions)
            number, instant = await (await engine.get(first))
            assert (number, f"s@{instant:%Y-%m-%dT%H:%M:%SZ}") == (5, first)
            handle = await engine.trigger_schedule("s")
            assert await handle == (5, None)
            await engine.resume_schedule("s")
            await engine.set_schedule(Schedule("s", reads_instant_async, 6, cron="0 0 * * *"))
            assert await engine.backfill_schedule("s", now - 2 * DAY, now) == 2
            await wait_for_async(engine, "s", lambda info: info.backfills == 0)
            # the sync workflow runs in a thread
            await engine.set_schedule(Schedule("sync", reads_instant, 7, cron=ONCE_A_YEAR))
            assert await (await engine.trigger_schedule("sync")) == (7, "kg", None)
            assert [info.name for info in await engine.schedules()] == ["s", "sync"]
            await engine.delete_schedule("s")
            with pytest.raises(ScheduleNotFound):
                await engine.schedule("s")
        rejected = Schedule("sync", reads_instant, 8, cron=ONCE_A_YEAR, on_conflict="reject")
        for opened in (AsyncEngine, AsyncClient):
            with pytest.raises(ScheduleConflict):
                await opened(url, schedules=[rejected]).open()
        added = Schedule("added", reads_instant, 1, every=DAY)
        async with AsyncClient(url, schedules=[added]) as client:
            assert [info.name for info in await client.schedules()] == ["added", "sync"]

    asyncio.run(main())
