"""Options of starts: the starts that accept or refuse each option, and starts of remote workflows."""

from __future__ import annotations

import asyncio
import datetime
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
    _native,
    current,
    sleep,
    step,
    workflow,
)
from stepfast._options.start_options import _CHECKS  # pyright: ignore[reportPrivateUsage]
from stepfast._outbox.connection import insert_row
from stepfast._outbox.inbox_row import InboxRow


@workflow
def multiply_by_two(n: int) -> int:
    return 2 * n


@workflow
async def multiply_by_two_async(n: int) -> int:
    await sleep(0)
    return 2 * n


@workflow
def join_id_and_number(n: int) -> str:
    return f"{current().workflow_id} {n}"


@workflow
def sleep_beyond_timeouts() -> None:
    sleep(hours=1)


@dataclass
class Multiplier:
    factor: int

    @workflow
    def multiply(self, n: int) -> int:
        return self.factor * n


def test_every_declared_option_has_check() -> None:
    assert list(_CHECKS) == list(StartOptions.__annotations__)


def test_engines_and_clients_run_every_startable(url: str) -> None:
    startables: list[Startable[[int], int]] = [
        multiply_by_two,
        multiply_by_two.options(workflow_id="a"),
        Multiplier(2).multiply,
        Multiplier(2).multiply.options(workflow_id="b"),
        RemoteWorkflow[[int], int]("multiply_by_two"),
        RemoteWorkflow[[int], int]("multiply_by_two").options(workflow_id="c"),
    ]
    with Engine(url) as engine, Client(url) as client:
        for startable in startables:
            assert isinstance(startable, Startable)
            assert engine.start(startable, 4).result(HANG_TIMEOUT) == 8
            assert engine.run(startable, 4) == 8
            assert client.run(startable, 4) == 8
        assert [engine.get(id, multiply_by_two).result(HANG_TIMEOUT) for id in "ac"] == [8, 8]
        # each startable with an id has one execution
        assert engine.count() == 3 + 3 * 3


def test_durations_are_seconds_or_timedeltas(url: str) -> None:
    with Engine(url) as engine:
        for limit in (0.05, datetime.timedelta(milliseconds=50)):
            for limited in (
                sleep_beyond_timeouts.options(execution_timeout=limit),
                sleep_beyond_timeouts.options(run_timeout=limit),
            ):
                with pytest.raises(WorkflowCancelled):
                    engine.run(limited)
        handle = engine.start(multiply_by_two.options(delay=datetime.timedelta(days=1)), 1)
        assert handle.status() == "scheduled"


def test_unknown_option_is_refused_with_known_options() -> None:
    startable: Any
    for startable in (multiply_by_two, multiply_by_two.options(), RemoteWorkflow("multiply_by_two")):
        with pytest.raises(
            TypeError, match="'timeout' is not an option of starts; .*workflow_id, execution_t"
        ):
            startable.options(timeout=3)


@pytest.mark.parametrize("option", ["workflow_id", "dedup_id", "debounce"])
def test_start_many_refuses_options_of_one_execution(sqlite_url: str, option: str) -> None:
    options: dict[str, Any] = {"queue": "q", "delay": 1, option: "x"}
    message = f"{option} is 'x', and start_many starts many executions, of which only one can have it"
    with Engine(sqlite_url, queues=[Queue("q")]) as engine:
        with pytest.raises(InvalidArgument, match=message):
            engine.start_many(multiply_by_two.options(**options), [(1,)])
        assert engine.count() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"debounce": "x", "delay": 1}, "debounce is 'x', and an outbox starts executions one by one"),
        ({"max_delay": 9}, "max_delay is 9.0, and an outbox starts executions one by one"),
        ({"wait_timeout": 5}, "wait_timeout is 5.0, and an outbox writes into the caller's transaction"),
        ({"on_full": "wait"}, "on_full is 'wait', and an outbox starts executions even in a full queue"),
        ({"on_full": "reject"}, "on_full is 'reject', and an outbox starts executions even in a full queue"),
        (
            {"dedup_id": "d", "on_duplicate": "return_existing"},
            "on_duplicate is 'return_existing', and an outbox starts nothing for a duplicate",
        ),
    ],
)
def test_outbox_refuses_options_of_other_starts(
    sqlite_url: str, options: dict[str, Any], message: str
) -> None:
    with Engine(sqlite_url):
        pass
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:"))) as connection:
        for startable in (multiply_by_two, RemoteWorkflow[[int], int]("multiply_by_two")):
            with pytest.raises(InvalidArgument, match=message):
                Outbox().start(connection, startable.options(queue="q", **options), 1)
        assert connection.execute("SELECT count(*) FROM inbox").fetchone() == (0,)
        same = multiply_by_two.options(queue="q", dedup_id="d", on_duplicate="reject")
        Outbox().start(connection, same, 1)


INVALID_CHILD_OPTIONS: list[tuple[dict[str, Any], str, bool]] = [
    ({"workflow_id": "w"}, "workflow_id is 'w', and a child that .* await is identified by its call", False),
    ({"queue": "q", "dedup_id": "d"}, "dedup_id is 'd', and a child that its workflow may await", False),
    ({"queue": "q", "debounce": "x", "delay": 1}, "debounce is 'x', and a child .*start .* in a step", True),
    ({"max_delay": 9}, "max_delay is 9.0, and a child .*cannot be debounced", True),
    ({"wait_timeout": 5}, "wait_timeout is 5.0, and a child .*leave it out", True),
    ({"queue": "q", "on_full": "wait"}, "on_full is 'wait', and a child .*never rejected", True),
    ({"queue": "q", "on_full": "reject"}, "on_full is 'reject', and a child .*never rejected", True),
]


@workflow
def start_children_with_options(options: dict[str, Any]) -> list[str]:
    configured, messages = multiply_by_two.options(**options), []
    for call in (configured, configured.start, configured.start_detached):
        try:
            call(1)
        except InvalidArgument as error:
            messages.append(str(error))
    return messages


@workflow
async def start_children_with_options_async(options: dict[str, Any], also_detached: bool) -> list[str]:
    messages: list[str] = []
    configured: Any
    for configured in (multiply_by_two_async.options(**options), multiply_by_two.options(**options)):
        starts = (
            [configured.in_thread]
            if configured.workflow is multiply_by_two
            else [configured, configured.start]
        )
        for call in (*starts, *([configured.start_detached] if also_detached else [])):
            try:
                await call(1)
            except InvalidArgument as error:
                messages.append(str(error))
    return messages


@pytest.mark.parametrize(("options", "message", "also_detached"), INVALID_CHILD_OPTIONS)
def test_children_refuse_options_of_other_starts(
    url: str, options: dict[str, Any], message: str, also_detached: bool
) -> None:
    async def main() -> list[str]:
        async with AsyncEngine(url) as engine:
            return await engine.run(start_children_with_options_async, options, also_detached)

    with Engine(url, queues=[Queue("q")]) as engine:
        messages = engine.run(start_children_with_options, options)
        assert len(messages) == (3 if also_detached else 2)
    messages += asyncio.run(main())
    assert len(messages) == (8 if also_detached else 5)
    for text in messages:
        with pytest.raises(AssertionError, match=message):
            raise AssertionError(text)


@step
def start_by_client_in_step(url: str) -> int:
    with Client(url) as client:
        return client.run(multiply_by_two.options(workflow_id="in a step", wait_timeout=60), 4)


@workflow
def run_client_step(url: str) -> int:
    return start_by_client_in_step(url)


def test_client_in_step_accepts_all_options(url: str) -> None:
    with Engine(url) as engine:
        assert engine.run(run_client_step, url) == 8
        assert engine.get("in a step").result(HANG_TIMEOUT) == 8


@workflow
def exceed_execution_timeouts() -> list[str]:
    codes = []
    limited = sleep_beyond_timeouts.options(execution_timeout=0.05)
    for wait in (limited, lambda: limited.start().result()):
        try:
            wait()
        except WorkflowCancelled as error:
            codes.append(error.code)
    return [*codes, limited.start_detached()]


@workflow
async def exceed_execution_timeout_async() -> str:
    try:
        await sleep_beyond_timeouts.options(execution_timeout=0.05).in_thread()
    except WorkflowCancelled as error:
        return error.code
    return ""


def test_children_accept_execution_timeouts(url: str) -> None:
    async def main() -> str:
        async with AsyncEngine(url) as engine:
            return await engine.run(exceed_execution_timeout_async)

    with Engine(url) as engine:
        called, started, detached = engine.run(exceed_execution_timeouts)
        assert (called, started) == ("SF-0021", "SF-0021")
        with pytest.raises(WorkflowCancelled, match="deadline"):
            engine.get(detached).result(HANG_TIMEOUT)
    assert asyncio.run(main()) == "SF-0021"


@workflow
def start_detached_with_id(id: str, n: int) -> str:
    return join_id_and_number.options(workflow_id=id, attributes={"of": "child"}).start_detached(n)


@workflow
async def start_detached_with_id_async(id: str, n: int) -> str:
    return await multiply_by_two_async.options(workflow_id=id).start_detached(n)


@workflow
def start_detached_with_id_repeatedly() -> list[str]:
    configured = join_id_and_number.options(workflow_id="once")
    outcomes = [configured.start_detached(1), configured.start_detached(n=1)]
    try:
        configured.start_detached(2)
    except WorkflowIdConflict as error:
        outcomes.append(error.code)
    try:
        multiply_by_two.options(workflow_id="once").start_detached(1)
    except Conflict as error:
        outcomes.append(error.code)
    sleep(0.02)
    return outcomes


def test_detached_children_accept_workflow_ids(url: str) -> None:
    with Engine(url) as engine:
        assert engine.run(start_detached_with_id, "c", 1) == "c"
        assert engine.get("c", join_id_and_number).result(HANG_TIMEOUT) == "c 1"
        # another parent and an engine return the same execution
        assert engine.run(start_detached_with_id, "c", 1) == "c"
        assert engine.run(join_id_and_number.options(workflow_id="c"), 1) == "c 1"
        assert engine.count(workflow=join_id_and_number) == 1
        assert engine.show("c").execution.attributes == {"of": "child"}
        with pytest.raises(
            WorkflowIdConflict, match="'join_id_and_number' with another input|another input"
        ) as raised:
            engine.run(start_detached_with_id, "c", 2)
        assert raised.value.code == "SF-0003"

    async def main() -> None:
        async with AsyncEngine(url) as engine:
            assert await engine.run(start_detached_with_id_async, "d", 4) == "d"
            assert await (await engine.get("d", multiply_by_two_async)) == 8

    asyncio.run(main())


def test_replay_repeats_outcomes_of_starts_with_ids(url: str) -> None:
    with Engine(url, suspend_after=0.0) as engine:
        handle = engine.start(start_detached_with_id_repeatedly)
        assert handle.result(HANG_TIMEOUT) == ["once", "once", "SF-0003", "SF-0003"]
        assert engine.count(workflow=join_id_and_number) == 1


@workflow
def start_detached_with_dedup_id(returns_existing: bool) -> str:
    start = multiply_by_two.options(
        queue="q", dedup_id="d", on_duplicate="return_existing" if returns_existing else "reject"
    )
    try:
        return start.start_detached(4)
    except DedupConflict as error:
        return error.code


def test_detached_children_accept_dedup_ids(url: str) -> None:
    with Engine(url, queues=[Queue("q")]) as engine:
        engine.pause_queue("q")
        first = engine.run(start_detached_with_dedup_id, False)
        assert engine.run(start_detached_with_dedup_id, True) == first
        assert engine.run(start_detached_with_dedup_id, False) == "SF-0039"
        engine.resume_queue("q")
        assert engine.get(first).result(HANG_TIMEOUT) == 8
        assert engine.run(start_detached_with_dedup_id, False) != first


def test_configured_workflow_is_refused_outside_workflows() -> None:
    configured = multiply_by_two.options(execution_timeout=60)
    for call in (configured, configured.start, configured.start_detached):
        with pytest.raises(InvalidArgument, match="is not the code of a workflow: use engine.start"):
            call(1)
    assert repr(configured) == "<workflow multiply_by_two with options>"
    assert repr(RemoteWorkflow("a").options(queue="q")) == "RemoteWorkflow('a')"


def test_engine_leaves_remote_workflow_to_other_workers(url: str) -> None:
    async def main(workflow_id: str) -> None:
        async with AsyncEngine(url) as other:
            assert await (await other.get(workflow_id, multiply_by_two_async)).result() == 8

    remote = RemoteWorkflow[[int], int]("multiply_by_two_async")
    with Engine(url) as engine:
        # this engine cannot run async workflows, and refuses their functions
        with pytest.raises(InvalidArgument, match=r"start RemoteWorkflow\('multiply_by_two_async'\)"):
            engine.start(multiply_by_two_async, 4)
        with pytest.raises(TypeError, match="do not fit multiply_by_two_async"):
            engine.start(RemoteWorkflow("multiply_by_two_async"))
        handle = engine.start(remote, 4)
        assert handle.status() == "queued"
        unknown = engine.start(RemoteWorkflow("defined_nowhere"), "any", argument=True)
        assert engine.show(unknown.workflow_id).kwargs == {"argument": True}
        assert engine.count(workflow=RemoteWorkflow("defined_nowhere")) == 1
        asyncio.run(main(handle.workflow_id))
        assert handle.result(HANG_TIMEOUT) == 8


def test_invalid_names_of_remote_workflows_are_refused() -> None:
    for name in ("", 5, "x" * 256, "a\nb"):
        with pytest.raises(InvalidArgument, match="the workflow's name is"):
            RemoteWorkflow(name)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not callable"):
        RemoteWorkflow("a")()  # type: ignore[operator]


def test_get_checks_workflow_of_execution(url: str) -> None:
    with Engine(url) as engine, Client(url) as client:
        engine.run(multiply_by_two.options(workflow_id="a"), 4)
        for startable in (
            multiply_by_two,
            multiply_by_two.options(queue="q"),
            RemoteWorkflow("multiply_by_two"),
        ):
            assert client.get("a", startable).result(HANG_TIMEOUT) == 8
        message = (
            'execution "a" is of workflow "multiply_by_two", not "join_id_and_number"; '
            "get it with its own workflow"
        )
        with pytest.raises(InvalidArgument, match=message):
            engine.get("a", join_id_and_number)
        with pytest.raises(NotFound):
            engine.get("b", multiply_by_two)
        with pytest.raises(InvalidArgument, match="workflow is 'multiply_by_two', and must be a workflow"):
            engine.get("a", "multiply_by_two")  # type: ignore[call-overload]


def test_clients_declare_queues(url: str) -> None:
    with Client(url, queues=[Queue("q", concurrency=3)]) as client:
        assert [queue.concurrency for queue in client.queues()] == [3]
        handle = client.start(multiply_by_two.options(queue="q"), 4)
        with Engine(url):
            assert handle.result(HANG_TIMEOUT) == 8
    with pytest.raises(QueueConflict):
        Client(url, queues=[Queue("q", on_conflict="reject")])
    with pytest.raises(InvalidArgument, match=r"'q' in queues is no queue: write Queue\('q'\)"):
        Client(url, queues=["q"])  # type: ignore[list-item]

    async def main() -> None:
        async with AsyncClient(url, queues=[Queue("r")]) as client:
            assert [queue.name for queue in await client.queues()] == ["q", "r"]
        with pytest.raises(InvalidArgument, match="must be a list"):
            AsyncClient(url, queues=Queue("q"))  # type: ignore[arg-type]

    asyncio.run(main())


def test_engine_is_subclass_of_client() -> None:
    assert issubclass(Engine, Client) and issubclass(AsyncEngine, AsyncClient)
    for name in ("drain", "work"):
        assert not hasattr(Client, name) and not hasattr(AsyncClient, name)
    with pytest.raises(TypeError, match="max_running"):
        Client("memory:", max_running=3)  # type: ignore[call-arg]


def test_client_starts_workflow_defined_after_its_open(url: str) -> None:
    with Client(url) as client:

        @workflow(name="defined_after_client")
        def multiply_by_two_late(n: int) -> int:
            return n

        handle = client.start(multiply_by_two_late, 3)
        with pytest.raises(TypeError, match="do not fit"):
            client.start(RemoteWorkflow("defined_after_client"))
    with Engine(url) as engine:
        assert engine.get(handle.workflow_id, multiply_by_two_late).result(HANG_TIMEOUT) == 3


def test_public_names_belong_to_package() -> None:
    for name in ("StartOptions", "Startable", "ConfiguredWorkflow", "RemoteWorkflow", "BulkResult"):
        assert getattr(stepfast, name).__module__ == "stepfast"


@pytest.mark.parametrize("target", [multiply_by_two, multiply_by_two_async])
def test_input_that_is_no_arguments_fails_the_execution(sqlite_url: str, target: Any) -> None:
    async def run() -> None:
        async with AsyncEngine(sqlite_url) as engine:
            for workflow_id in ids:
                while not await engine.list(workflow=target.name):
                    await asyncio.sleep(0.01)
                with pytest.raises(
                    InvalidArgument, match="not the arguments of a Python function.*--arguments"
                ):
                    await (await engine.get(workflow_id)).result()

    Engine(sqlite_url).close()
    header = _native.encode_start((), {}, 0)[2][:1]
    ids = []
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:"))) as connection:
        # in MessagePack: a number, nothing, a text of two letters, and a list of two numbers
        for value in (b"\x07", b"\xc0", b"\xa2ab", b"\x92\x01\x02"):
            key, text, _, _ = _native.encode_start((), {}, 0)
            insert_row(
                connection, InboxRow(key, text, target.name, None, header + value, {}), "stepfast", False
            )
            ids.append(text)
        connection.commit()
    asyncio.run(run())
