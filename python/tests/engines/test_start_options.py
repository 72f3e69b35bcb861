"""Options of starts: where they hold, where they are refused, and workflows that are given by their names."""

from __future__ import annotations

import asyncio
import datetime
import pathlib
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from watched_process import HANG_TIMEOUT

import stepfast
from stepfast import (
    AsyncClient,
    AsyncEngine,
    Client,
    Conflict,
    DedupConflict,
    Engine,
    InvalidArgument,
    NotFound,
    Outbox,
    Queue,
    QueueConflict,
    RemoteWorkflow,
    Startable,
    StartOptions,
    WorkflowCancelled,
    WorkflowIdConflict,
    current,
    sleep,
    step,
    workflow,
)
from stepfast._options.start_options import _CHECKS  # pyright: ignore[reportPrivateUsage]


@workflow
def optioned(n: int) -> int:
    return 2 * n


@workflow
async def optioned_async(n: int) -> int:
    await sleep(0)
    return 2 * n


@workflow
def optioned_id(n: int) -> str:
    return f"{current().workflow_id} {n}"


@workflow
def optioned_sleeper() -> None:
    sleep(hours=1)


@dataclass
class Bound:
    factor: int

    @workflow
    def times(self, n: int) -> int:
        return self.factor * n


@pytest.fixture
def file(tmp_path: pathlib.Path) -> str:
    return f"sqlite:{tmp_path}/test.db"


def test_every_option_is_declared_and_checked() -> None:
    assert list(_CHECKS) == list(StartOptions.__annotations__)


def test_all_that_can_be_started_has_options(url: str) -> None:
    given: list[Startable[[int], int]] = [
        optioned,
        optioned.options(workflow_id="a"),
        Bound(2).times,
        Bound(2).times.options(workflow_id="b"),
        RemoteWorkflow[[int], int]("optioned"),
        RemoteWorkflow[[int], int]("optioned").options(workflow_id="c"),
    ]
    with Engine(url) as engine, Client(url) as client:
        for each in given:
            assert isinstance(each, Startable)
            assert engine.start(each, 4).result(HANG_TIMEOUT) == 8
            assert engine.run(each, 4) == 8
            assert client.run(each, 4) == 8
        assert [engine.get(id, optioned).result(HANG_TIMEOUT) for id in "ac"] == [8, 8]
        # those with an id were started once
        assert engine.count() == 3 + 3 * 3


def test_durations_are_seconds_or_a_timedelta(url: str) -> None:
    with Engine(url) as engine:
        for limit in (0.05, datetime.timedelta(milliseconds=50)):
            for limited in (
                optioned_sleeper.options(execution_timeout=limit),
                optioned_sleeper.options(run_timeout=limit),
            ):
                with pytest.raises(WorkflowCancelled):
                    engine.run(limited)
        handle = engine.start(optioned.options(delay=datetime.timedelta(days=1)), 1)
        assert handle.status() == "scheduled"


def test_an_unknown_option_is_named_with_the_known_ones() -> None:
    given: Any
    for given in (optioned, optioned.options(), RemoteWorkflow("optioned")):
        with pytest.raises(
            TypeError, match="'timeout' is not an option of starts; .*workflow_id, execution_t"
        ):
            given.options(timeout=3)


@pytest.mark.parametrize("option", ["workflow_id", "dedup_id", "debounce"])
def test_options_of_one_execution_do_not_hold_for_many(file: str, option: str) -> None:
    options: dict[str, Any] = {"queue": "q", "delay": 1, option: "x"}
    refused = f"{option} is 'x', and start_many starts many executions, of which only one can have it"
    with Engine(file, queues=[Queue("q")]) as engine:
        with pytest.raises(InvalidArgument, match=refused):
            engine.start_many(optioned.options(**options), [(1,)])
        assert engine.count() == 0


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"debounce": "x", "delay": 1}, "debounce is 'x', and an outbox starts executions one by one"),
        ({"max_delay": 9}, "max_delay is 9.0, and an outbox starts executions one by one"),
        ({"wait_timeout": 5}, "wait_timeout is 5.0, and an outbox writes into the caller's transaction"),
        ({"on_full": "wait"}, "on_full is 'wait', and an outbox is never rejected by a full queue"),
        ({"on_full": "reject"}, "on_full is 'reject', and an outbox is never rejected by a full queue"),
        (
            {"dedup_id": "d", "on_duplicate": "return_existing"},
            "on_duplicate is 'return_existing', and an outbox starts nothing for a duplicate",
        ),
    ],
)
def test_options_that_do_not_hold_for_outboxes(file: str, options: dict[str, Any], refused: str) -> None:
    with Engine(file):
        pass
    with closing(sqlite3.connect(file.removeprefix("sqlite:"))) as connection:
        for given in (optioned, RemoteWorkflow[[int], int]("optioned")):
            with pytest.raises(InvalidArgument, match=refused):
                Outbox().start(connection, given.options(queue="q", **options), 1)
        assert connection.execute("SELECT count(*) FROM inbox").fetchone() == (0,)
        same = optioned.options(queue="q", dedup_id="d", on_duplicate="reject")
        Outbox().start(connection, same, 1)


OF_CHILDREN: list[tuple[dict[str, Any], str, bool]] = [
    ({"workflow_id": "w"}, "workflow_id is 'w', and a child that .* await is identified by its call", False),
    ({"queue": "q", "dedup_id": "d"}, "dedup_id is 'd', and a child that its workflow may await", False),
    ({"queue": "q", "debounce": "x", "delay": 1}, "debounce is 'x', and a child .*start .* in a step", True),
    ({"max_delay": 9}, "max_delay is 9.0, and a child .*cannot be debounced", True),
    ({"wait_timeout": 5}, "wait_timeout is 5.0, and a child .*leave it out", True),
    ({"queue": "q", "on_full": "wait"}, "on_full is 'wait', and a child .*never rejected", True),
    ({"queue": "q", "on_full": "reject"}, "on_full is 'reject', and a child .*never rejected", True),
]


@workflow
def optioned_parent(options: dict[str, Any]) -> list[str]:
    configured, said = optioned.options(**options), []
    for call in (configured, configured.start, configured.start_detached):
        try:
            call(1)
        except InvalidArgument as error:
            said.append(str(error))
    return said


@workflow
async def optioned_parent_async(options: dict[str, Any], also_detached: bool) -> list[str]:
    said: list[str] = []
    configured: Any
    for configured in (optioned_async.options(**options), optioned.options(**options)):
        starts = [configured.in_thread] if configured.workflow is optioned else [configured, configured.start]
        for call in (*starts, *([configured.start_detached] if also_detached else [])):
            try:
                await call(1)
            except InvalidArgument as error:
                said.append(str(error))
    return said


@pytest.mark.parametrize(("options", "refused", "also_detached"), OF_CHILDREN)
def test_options_that_do_not_hold_for_children(
    url: str, options: dict[str, Any], refused: str, also_detached: bool
) -> None:
    async def main() -> list[str]:
        async with AsyncEngine(url) as engine:
            return await engine.run(optioned_parent_async, options, also_detached)

    with Engine(url, queues=[Queue("q")]) as engine:
        said = engine.run(optioned_parent, options)
        assert len(said) == (3 if also_detached else 2)
    said += asyncio.run(main())
    assert len(said) == (8 if also_detached else 5)
    for each in said:
        with pytest.raises(AssertionError, match=refused):
            raise AssertionError(each)


@step
def optioned_start_in_a_step(url: str) -> int:
    with Client(url) as client:
        return client.run(optioned.options(workflow_id="in a step", wait_timeout=60), 4)


@workflow
def optioned_steps(url: str) -> int:
    return optioned_start_in_a_step(url)


def test_all_options_hold_in_a_step(url: str) -> None:
    with Engine(url) as engine:
        assert engine.run(optioned_steps, url) == 8
        assert engine.get("in a step").result(HANG_TIMEOUT) == 8


@workflow
def optioned_times_out() -> list[str]:
    said = []
    limited = optioned_sleeper.options(execution_timeout=0.05)
    for wait in (limited, lambda: limited.start().result()):
        try:
            wait()
        except WorkflowCancelled as error:
            said.append(error.code)
    return [*said, limited.start_detached()]


@workflow
async def optioned_times_out_async() -> str:
    try:
        await optioned_sleeper.options(execution_timeout=0.05).in_thread()
    except WorkflowCancelled as error:
        return error.code
    return ""


def test_children_have_an_execution_timeout(url: str) -> None:
    async def main() -> str:
        async with AsyncEngine(url) as engine:
            return await engine.run(optioned_times_out_async)

    with Engine(url) as engine:
        called, started, detached = engine.run(optioned_times_out)
        assert (called, started) == ("SF-0021", "SF-0021")
        with pytest.raises(WorkflowCancelled, match="deadline"):
            engine.get(detached).result(HANG_TIMEOUT)
    assert asyncio.run(main()) == "SF-0021"


@workflow
def optioned_detaches(id: str, n: int) -> str:
    return optioned_id.options(workflow_id=id, attributes={"of": "child"}).start_detached(n)


@workflow
async def optioned_detaches_async(id: str, n: int) -> str:
    return await optioned_async.options(workflow_id=id).start_detached(n)


@workflow
def optioned_detaches_twice() -> list[str]:
    named = optioned_id.options(workflow_id="once")
    said = [named.start_detached(1), named.start_detached(n=1)]
    try:
        named.start_detached(2)
    except WorkflowIdConflict as error:
        said.append(error.code)
    try:
        optioned.options(workflow_id="once").start_detached(1)
    except Conflict as error:
        said.append(error.code)
    sleep(0.02)
    return said


def test_detached_children_have_ids_of_their_own(url: str) -> None:
    with Engine(url) as engine:
        assert engine.run(optioned_detaches, "c", 1) == "c"
        assert engine.get("c", optioned_id).result(HANG_TIMEOUT) == "c 1"
        # another parent, and a start from outside, lead to the same execution
        assert engine.run(optioned_detaches, "c", 1) == "c"
        assert engine.run(optioned_id.options(workflow_id="c"), 1) == "c 1"
        assert engine.count(workflow=optioned_id) == 1
        assert engine.show("c").execution.attributes == {"of": "child"}
        with pytest.raises(
            WorkflowIdConflict, match="'optioned_id' with another input|another input"
        ) as caught:
            engine.run(optioned_detaches, "c", 2)
        assert caught.value.code == "SF-0003"

    async def main() -> None:
        async with AsyncEngine(url) as engine:
            assert await engine.run(optioned_detaches_async, "d", 4) == "d"
            assert await (await engine.get("d", optioned_async)) == 8

    asyncio.run(main())


def test_replays_repeat_what_a_start_with_an_id_came_to(url: str) -> None:
    with Engine(url, suspend_after=0.0) as engine:
        handle = engine.start(optioned_detaches_twice)
        assert handle.result(HANG_TIMEOUT) == ["once", "once", "SF-0003", "SF-0003"]
        assert engine.count(workflow=optioned_id) == 1


@workflow
def optioned_deduplicates(existing: bool) -> str:
    start = optioned.options(
        queue="q", dedup_id="d", on_duplicate="return_existing" if existing else "reject"
    )
    try:
        return start.start_detached(4)
    except DedupConflict as error:
        return error.code


def test_detached_children_have_dedup_ids(url: str) -> None:
    with Engine(url, queues=[Queue("q")]) as engine:
        engine.pause_queue("q")
        first = engine.run(optioned_deduplicates, False)
        assert engine.run(optioned_deduplicates, True) == first
        assert engine.run(optioned_deduplicates, False) == "SF-0039"
        engine.resume_queue("q")
        assert engine.get(first).result(HANG_TIMEOUT) == 8
        assert engine.run(optioned_deduplicates, False) != first


def test_a_configured_workflow_is_a_child_or_started_by_an_engine() -> None:
    configured = optioned.options(execution_timeout=60)
    for call in (configured, configured.start, configured.start_detached):
        with pytest.raises(InvalidArgument, match="is not the code of a workflow: use engine.start"):
            call(1)
    assert repr(configured) == "<workflow optioned with options>"
    assert repr(RemoteWorkflow("a").options(queue="q")) == "RemoteWorkflow('a')"


def test_an_engine_leaves_a_named_workflow_to_another_worker(url: str) -> None:
    async def main(workflow_id: str) -> None:
        async with AsyncEngine(url) as other:
            assert await (await other.get(workflow_id, optioned_async)).result() == 8

    named = RemoteWorkflow[[int], int]("optioned_async")
    with Engine(url) as engine:
        # what is async does not run here, and is refused by itself
        with pytest.raises(InvalidArgument, match=r"start RemoteWorkflow\('optioned_async'\)"):
            engine.start(optioned_async, 4)
        with pytest.raises(TypeError, match="do not fit optioned_async"):
            engine.start(RemoteWorkflow("optioned_async"))
        handle = engine.start(named, 4)
        assert handle.status() == "queued"
        unknown = engine.start(RemoteWorkflow("optioned_nowhere"), "any", argument=True)
        assert engine.show(unknown.workflow_id).kwargs == {"argument": True}
        assert engine.count(workflow=RemoteWorkflow("optioned_nowhere")) == 1
        asyncio.run(main(handle.workflow_id))
        assert handle.result(HANG_TIMEOUT) == 8


def test_names_that_cannot_be_are_refused() -> None:
    for name in ("", 5, "x" * 256, "a\nb"):
        with pytest.raises(InvalidArgument, match="the workflow's name is"):
            RemoteWorkflow(name)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not callable"):
        RemoteWorkflow("a")()  # type: ignore[operator]


def test_a_handle_may_be_asked_for_with_its_workflow(url: str) -> None:
    with Engine(url) as engine, Client(url) as client:
        engine.run(optioned.options(workflow_id="a"), 4)
        for found in (optioned, optioned.options(queue="q"), RemoteWorkflow("optioned")):
            assert client.get("a", found).result(HANG_TIMEOUT) == 8
        wrong = 'execution "a" is of workflow "optioned", not "optioned_id"; get it with its own workflow'
        with pytest.raises(InvalidArgument, match=wrong):
            engine.get("a", optioned_id)
        with pytest.raises(NotFound):
            engine.get("b", optioned)
        with pytest.raises(InvalidArgument, match="workflow is 'optioned', and must be a workflow"):
            engine.get("a", "optioned")  # type: ignore[call-overload]


def test_clients_declare_queues(url: str) -> None:
    with Client(url, queues=[Queue("q", concurrency=3)]) as client:
        assert [queue.concurrency for queue in client.queues()] == [3]
        handle = client.start(optioned.options(queue="q"), 4)
        with Engine(url):
            assert handle.result(HANG_TIMEOUT) == 8
    with pytest.raises(QueueConflict):
        Client(url, queues=[Queue("q", on_conflict="refuse")])
    with pytest.raises(InvalidArgument, match=r"'q' in queues is no queue: write Queue\('q'\)"):
        Client(url, queues=["q"])  # type: ignore[list-item]

    async def main() -> None:
        async with AsyncClient(url, queues=[Queue("r")]) as client:
            assert [queue.name for queue in await client.queues()] == ["q", "r"]
        with pytest.raises(InvalidArgument, match="must be a list"):
            AsyncClient(url, queues=Queue("q"))  # type: ignore[arg-type]

    asyncio.run(main())


def test_an_engine_is_a_client_that_runs() -> None:
    assert issubclass(Engine, Client) and issubclass(AsyncEngine, AsyncClient)
    for name in ("drain", "work"):
        assert not hasattr(Client, name) and not hasattr(AsyncClient, name)
    with pytest.raises(TypeError, match="max_running"):
        Client("memory:", max_running=3)  # type: ignore[call-arg]


def test_a_workflow_defined_after_a_client_was_opened_is_started(url: str) -> None:
    with Client(url) as client:

        @workflow(name="optioned_late")
        def late(n: int) -> int:
            return n

        handle = client.start(late, 3)
        with pytest.raises(TypeError, match="do not fit"):
            client.start(RemoteWorkflow("optioned_late"))
    with Engine(url) as engine:
        assert engine.get(handle.workflow_id, late).result(HANG_TIMEOUT) == 3


def test_public_names_are_those_of_the_package() -> None:
    for name in ("StartOptions", "Startable", "ConfiguredWorkflow", "RemoteWorkflow", "BulkResult"):
        assert getattr(stepfast, name).__module__ == "stepfast"
