"""Queues: placements, limits, rates, pauses, debounces, and the queues that workers serve."""

from __future__ import annotations

import asyncio
import dataclasses
import pathlib
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from watched_process import HANG_TIMEOUT

from stepfast import (
    AsyncClient,
    AsyncEngine,
    Client,
    Conflict,
    Engine,
    Error,
    InvalidArgument,
    NotFound,
    Queue,
    QueueFull,
    QueueInfo,
    Rate,
    RemoteWorkflow,
    StartOptions,
    Unavailable,
    WorkflowCancelled,
    sleep,
    step,
    workflow,
)


class ConcurrencyGauge:
    """The number of running bodies, its maximum, and the order in which bodies began."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        self.running = self.max_running = 0
        self.order: list[str] = []

    def enter(self, name: str) -> None:
        with self.lock:
            self.running += 1
            self.max_running = max(self.max_running, self.running)
            self.order.append(name)

    def leave(self) -> None:
        with self.lock:
            self.running -= 1


gauge = ConcurrencyGauge()


@step
def measure_concurrency(name: str) -> str:
    gauge.enter(name)
    # concurrent bodies get time to exceed a limit
    threading.Event().wait(0.002)
    gauge.leave()
    return name


@workflow
def run_measured_step(name: str) -> str:
    return measure_concurrency(name)


@workflow
def join_queue_and_key(*, queue: str, key: str = "") -> str:
    return f"{queue} {key}"


@workflow
async def double_after_sleep(n: int) -> int:
    await sleep(0)
    return 2 * n


@workflow
def sleep_in_queue(seconds: float) -> None:
    sleep(seconds)


@workflow
def start_by_stored_engine() -> None:
    engines[0].start(run_measured_step.options(queue="emails"), "never")


engines: list[Engine] = []


@pytest.fixture(autouse=True)
def reset_gauge() -> None:
    gauge.reset()


def test_queued_executions_run_with_their_placement(url: str) -> None:
    emails = Queue("emails", concurrency=2)
    with Engine(url, queues=[emails]) as engine:
        handle = engine.start(run_measured_step.options(queue=emails), "a")
        assert handle.result(HANG_TIMEOUT) == "a"
        placed = join_queue_and_key.options(workflow_id="w", queue="emails", key="ann", priority=-3)
        # arguments by name are the workflow's, never options
        assert engine.run(placed, queue="q", key="k") == "q k"
        assert engine.start(placed, queue="q", key="k").result(HANG_TIMEOUT) == "q k"
        assert (
            engine.start(join_queue_and_key.options(queue="emails"), queue="x").result(HANG_TIMEOUT) == "x "
        )
        engine.run(run_measured_step.options(workflow_id="none"), "b")

        execution = engine.show("w").execution
        assert (execution.queue, execution.key, execution.priority) == ("emails", "ann", -3)
        execution = engine.show(handle.workflow_id).execution
        assert (execution.queue, execution.key, execution.priority) == ("emails", None, 0)
        (listed,) = engine.list(id_prefix="none")
        assert (listed.queue, listed.key, listed.priority) == (None, None, 0)


def test_concurrency_limits_are_never_exceeded(url: str) -> None:
    with Engine(url, queues=[Queue("emails", concurrency=2)]) as engine:
        handles = [engine.start(run_measured_step.options(queue="emails"), str(n)) for n in range(30)]
        assert engine.results(handles) == [str(n) for n in range(30)]
        assert 1 <= gauge.max_running <= 2
        gauge.reset()
        engine.set_queue(Queue("emails", key_concurrency=1))
        placed = run_measured_step.options(queue="emails", key="ann")
        engine.results([engine.start(placed, str(n)) for n in range(10)])
        assert (gauge.max_running, gauge.order) == (1, [str(n) for n in range(10)])


def test_claims_follow_priorities_and_share_keys_fairly(sqlite_url: str) -> None:
    with Engine(sqlite_url, queues=[Queue("emails", concurrency=1)]) as engine:
        engine.pause_queue("emails")
        handles = [
            engine.start(run_measured_step.options(queue="emails", priority=priority), name)
            for name, priority in [("a", 5), ("b", None), ("c", -7), ("d", 5), ("e", 0)]
        ]
        engine.resume_queue("emails")
        engine.results(handles)
        assert gauge.order == ["c", "b", "e", "a", "d"]

        gauge.reset()
        engine.pause_queue("emails")
        handles = [
            engine.start(run_measured_step.options(queue="emails", key=key), key)
            for key in [*["ann"] * 5, "bob"]
        ]
        engine.resume_queue("emails")
        engine.results(handles)
        assert gauge.order.index("bob") < 2


def test_claims_follow_weights_of_keys(sqlite_url: str) -> None:
    weighted = Queue("emails", concurrency=1, key_weights={"ann": 3})
    with Engine(sqlite_url, queues=[weighted]) as engine:
        assert engine.queues()[0].key_weights == {"ann": 3}
        engine.pause_queue("emails")
        handles = [
            engine.start(run_measured_step.options(queue="emails", key=key), key)
            for key in [*["ann"] * 6, *["bob"] * 2]
        ]
        engine.resume_queue("emails")
        engine.results(handles)
        assert "".join(name[0] for name in gauge.order) == "aaabaaab"


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"ann": 0}, r"key_weights\['ann'\] of queue 'emails' is 0, and must be from 1 to 1000"),
        ({"ann": 1.5}, "must be a whole number"),
        ({"a\nn": 2}, "a key of key_weights of queue 'emails'"),
        (["ann"], "must be a dict"),
        ({str(n): 2 for n in range(1001)}, "has 1001 keys"),
    ],
)
def test_invalid_key_weights_are_refused(weights: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        Queue("emails", key_weights=weights)


def test_suspended_execution_has_no_slot(sqlite_url: str) -> None:
    with Engine(sqlite_url, queues=[Queue("emails", concurrency=1)], suspend_after=0.001) as engine:
        sleeper = engine.start(sleep_in_queue.options(queue="emails"), 3600)
        assert engine.start(run_measured_step.options(queue="emails"), "a").result(HANG_TIMEOUT) == "a"
        assert sleeper.status() == "waiting"
        sleeper.cancel()


def test_paused_queue_runs_nothing_before_its_resume(url: str) -> None:
    emails = Queue("emails")
    with Engine(url, queues=[emails]) as engine, Client(url) as client:
        paused = client.pause_queue(emails)
        assert paused.is_paused and paused.version == 2
        assert client.pause_queue("emails") == paused
        handle = engine.start(run_measured_step.options(queue="emails"), "a")
        assert engine.run(run_measured_step, "b") == "b"
        assert handle.status() == "queued"
        # new limits do not resume the queue
        assert client.set_queue(Queue("emails", concurrency=3)).is_paused
        resumed = client.resume_queue("emails")
        assert not resumed.is_paused and resumed.concurrency == 3
        assert handle.result(HANG_TIMEOUT) == "a"


def test_queues_are_listed_with_their_limits(url: str) -> None:
    with Engine(url, queues=[Queue("b", concurrency=1, worker_concurrency=2, key_concurrency=3)]) as engine:
        stored = engine.set_queue(Queue("a"))
        assert engine.set_queue(Queue("a")) == stored
        a, b = engine.queues()
        assert a == stored
        assert (b.name, b.concurrency, b.worker_concurrency, b.key_concurrency) == ("b", 1, 2, 3)
        assert (b.is_paused, b.version) == (False, 1)
        assert b.changed_at.tzinfo is UTC
        assert abs(datetime.now(UTC) - b.changed_at) < timedelta(minutes=5)


def test_on_conflict_decides_between_declared_and_stored_limits(sqlite_url: str) -> None:
    def stored_after_declaration(queue: Queue) -> QueueInfo:
        """Declares the queue, and returns the stored one."""
        with Engine(sqlite_url, queues=[queue]) as engine:
            return engine.queues()[0]

    assert stored_after_declaration(Queue("a", concurrency=1)).concurrency == 1
    assert stored_after_declaration(Queue("a", concurrency=2, on_conflict="keep")).concurrency == 1
    with pytest.raises(Conflict, match=r"'a'|\"a\".*other on_conflict") as raised:
        stored_after_declaration(Queue("a", concurrency=2, on_conflict="reject"))
    assert raised.value.code == "SF-0038"
    assert stored_after_declaration(Queue("a", concurrency=1, on_conflict="reject")).version == 1
    assert stored_after_declaration(Queue("a", concurrency=2)).concurrency == 2


def test_worker_runs_only_executions_of_served_queues(url: str) -> None:
    queues = [Queue("a"), Queue("b")]
    with Engine(url, queues=queues, serve_queues=["b"]) as engine:
        queued = engine.start(run_measured_step.options(queue="a"), "a")
        assert engine.start(run_measured_step.options(queue="b"), "b").result(HANG_TIMEOUT) == "b"
        # an execution without a queue runs on its caller's worker
        assert engine.run(run_measured_step, "c") == "c"
        assert queued.status() == "queued"
        with Engine(url, serve_queues=[queues[0], "default"]):
            assert queued.result(HANG_TIMEOUT) == "a"


def test_clients_start_remote_workflows_in_queues(url: str) -> None:
    with Client(url) as client, Engine(url):
        client.set_queue(Queue("emails"))
        handle = client.start(RemoteWorkflow("run_measured_step").options(queue="emails"), "a")
        assert handle.result(HANG_TIMEOUT) == "a"
        assert client.start(run_measured_step.options(queue="emails"), "b").result(HANG_TIMEOUT) == "b"
        assert client.run(run_measured_step.options(queue="emails"), "c") == "c"


async def use_queues_on_loop(url: str) -> None:
    queues = [Queue("emails", concurrency=2)]
    async with AsyncEngine(url, queues=queues, serve_queues=["emails", "default"]) as engine:
        handle = await engine.start(double_after_sleep.options(queue="emails"), 4)
        assert await handle == 8
        assert await (await engine.start(run_measured_step.options(queue=queues[0]), "a")) == "a"
        placed = double_after_sleep.options(queue="emails", key="ann", priority=1, workflow_id="w")
        assert await engine.run(placed, 5) == 10
        assert await (await engine.start(placed, 5)) == 10
        execution = (await engine.show("w")).execution
        assert (execution.queue, execution.key, execution.priority) == ("emails", "ann", 1)
        async with AsyncClient(url) as client:
            assert (await client.pause_queue("emails")).is_paused
            delayed = await client.start(RemoteWorkflow("double_after_sleep").options(queue="emails"), 6)
            assert await engine.run(double_after_sleep, 1) == 2
            assert await delayed.status() == "queued"
            assert not (await client.resume_queue(queues[0])).is_paused
            assert await delayed == 12
            assert (await client.set_queue(Queue("mail"))).version == 1
            assert [queue.name for queue in await client.queues()] == ["emails", "mail"]
        with pytest.raises(NotFound, match="does not exist"):
            await engine.start(double_after_sleep.options(queue="post"), 1)
        with pytest.raises(NotFound, match="does not exist"):
            await engine.pause_queue("post")


def test_async_engine_and_client_support_queues(url: str) -> None:
    asyncio.run(use_queues_on_loop(url))


def test_missing_queue_is_refused_with_existing_queues(sqlite_url: str) -> None:
    with Engine(sqlite_url, queues=[Queue("emails")]) as engine:
        message = (
            r'"mail" does not exist \(existing queues: emails\); declare it .* queues=\[Queue\("mail"\)\]'
        )
        for call in (
            lambda: engine.start(run_measured_step.options(queue="mail"), "a"),
            lambda: engine.run(run_measured_step.options(queue="mail"), "a"),
            lambda: engine.pause_queue("mail"),
            lambda: engine.resume_queue("mail"),
        ):
            with pytest.raises(NotFound, match=message) as raised:
                call()
            assert raised.value.code == "SF-0037"
        assert engine.count() == 0


def test_engine_refuses_queued_starts_in_workflow_code(sqlite_url: str) -> None:
    with Engine(sqlite_url, queues=[Queue("emails")]) as engine:
        engines[:] = [engine]
        with pytest.raises(InvalidArgument, match="called in the code of a workflow"):
            engine.run(start_by_stored_engine)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": ""}, "name is '', and must be text that is not empty"),
        ({"name": 3}, "name is 3, and must be text"),
        ({"name": "a\nb"}, "printable"),
        ({"name": "x" * 256}, "256 bytes, at most 255"),
        ({"name": "default"}, "'default', the queue of the executions without a queue, .*: choose another"),
        ({"concurrency": 0}, "concurrency of queue 'a' is 0, and must be at least 1: to stop .* pause it"),
        ({"worker_concurrency": -1}, "worker_concurrency of queue 'a' is -1, and must be from 1 to"),
        ({"key_concurrency": 1.5}, "key_concurrency of queue 'a' is 1.5, and must be a whole number"),
        ({"concurrency": 2**32}, "must be from 1 to 2147483647"),
        ({"concurrency": True}, "is True, and must be a whole number"),
        ({"on_conflict": "ask"}, "is 'ask', and must be one of 'update', 'keep', 'reject'"),
    ],
)
def test_invalid_queues_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        Queue(**{"name": "a", **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": "k"}, "key is 'k', and needs a queue: give queue= too"),
        ({"priority": 0}, "priority is 0, and needs a queue"),
        ({"queue": "default"}, "'default', which holds the executions without a queue: leave it out"),
        ({"queue": 3}, "queue is 3, and must be text"),
        ({"queue": "a", "key": ""}, "key is '', and must be text that is not empty"),
        ({"queue": "a", "key": "x" * 1025}, "1025 bytes, at most 1024"),
        ({"queue": "a", "priority": 1.5}, "priority is 1.5, and must be a whole number"),
        ({"queue": "a", "priority": 2**31}, "must be from -2147483648 to 2147483647"),
    ],
)
def test_invalid_placements_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        run_measured_step.options(**arguments)


@pytest.mark.parametrize("engine_class", [Engine, AsyncEngine])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"queues": Queue("a")}, r"must be a list, as in queues=\[Queue\('emails'\)\]"),
        ({"queues": ["a"]}, r"'a' in queues is no queue: write Queue\('a'\)"),
        ({"queues": [3]}, "3 in queues is no queue: write Queue"),
        ({"queues": [Queue("a"), Queue("a", concurrency=1)]}, "'a' more than once: declare it once"),
        ({"serve_queues": "emails"}, r"must be a list, as in serve_queues=\['emails', 'default'\]"),
        ({"serve_queues": 3}, "must be a list"),
        ({"serve_queues": [""]}, "must be text that is not empty"),
    ],
)
def test_invalid_queue_options_of_engines_are_refused(
    sqlite_url: str, engine_class: type[Engine | AsyncEngine], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        engine_class(sqlite_url, **arguments)


def test_invalid_arguments_of_engine_methods_are_refused(sqlite_url: str) -> None:
    engine: Any
    with Engine(sqlite_url) as engine:
        with pytest.raises(InvalidArgument, match="'emails' is no queue"):
            engine.set_queue("emails")
        with pytest.raises(InvalidArgument, match=r"is text: .* write RemoteWorkflow\('run_measured_step'\)"):
            engine.start("run_measured_step", "a")
        with pytest.raises(InvalidArgument, match="is no workflow: give a workflow, then its arguments"):
            engine.start(str.upper, "a")
        for change in (engine.pause_queue, engine.resume_queue):
            with pytest.raises(
                InvalidArgument, match="holds the executions without a queue, and cannot be paused"
            ):
                change("default")


def test_queues_are_immutable_values() -> None:
    queue = Queue("a", concurrency=1)
    assert queue == Queue("a", concurrency=1) != Queue("a")
    assert len({queue, Queue("a", concurrency=1)}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        queue.name = "b"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    assert dataclasses.replace(queue, concurrency=2).concurrency == 2


def test_program_pauses_queue_of_running_engine(sqlite_url: str, program: pathlib.Path) -> None:
    with Engine(sqlite_url, queues=[Queue("emails")]) as engine:
        command = [program, "queue", "pause", "emails", "--store", sqlite_url]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        assert engine.queues()[0].is_paused


def test_rates_are_listed_and_due_times_are_kept(url: str) -> None:
    rate, even = Rate(100, 60), Rate(1, per=0.25, burst=2)
    with Engine(url, queues=[Queue("a", rate=rate, key_rate=even)]) as engine:
        (info,) = engine.queues()
        assert (info.rate, info.key_rate) == (rate, even)
        delayed = engine.start(run_measured_step.options(queue="a", delay=3600), "1")
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        timed = engine.start(run_measured_step.options(start_at=tomorrow), "2")
        assert (delayed.status(), timed.status()) == ("scheduled", "scheduled")
        immediate = engine.start(run_measured_step.options(delay=0.001), "3")
        assert immediate.result() == "3"
        output = engine.run(run_measured_step.options(queue="a", start_at=tomorrow - timedelta(days=9)), "4")
        assert output == "4"
        timed.cancel()


def test_rate_limits_starts_of_queued_executions(url: str) -> None:
    with Engine(url, queues=[Queue("a", rate=Rate(2, 3600))]) as engine:
        handles = [engine.start(run_measured_step.options(queue="a"), str(n)) for n in range(3)]
        assert [handle.result() for handle in handles[:2]] == ["0", "1"]
        assert handles[2].status() == "queued"


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (lambda: Rate(0, 1), "starts"),
        (lambda: Rate(1, 0), "period"),
        (lambda: Rate(1, 1, burst=0), "burst"),
        (lambda: Queue("a", rate=100), "must be a Rate"),  # type: ignore[arg-type]
    ],
)
def test_invalid_rates_are_refused(create: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        create()


def test_invalid_delays_and_start_times_are_refused() -> None:
    for options, message in [
        ({"delay": -1}, "delay is -1"),
        ({"delay": "1"}, "must be a number"),
        ({"start_at": 5}, "datetime with a time zone"),
        ({"start_at": datetime(2030, 1, 1)}, "datetime with a time zone"),
        ({"delay": 1, "start_at": datetime.now(UTC)}, "give one of them"),
    ]:
        with pytest.raises(InvalidArgument, match=message):
            run_measured_step.options(**options)  # type: ignore[arg-type]


def test_queue_has_one_unfinished_execution_per_dedup_id(url: str) -> None:
    with Engine(url, queues=[Queue("sync", concurrency=1)]) as engine, Client(url) as client:
        engine.pause_queue("sync")
        deduplicated = run_measured_step.options(queue="sync", dedup_id="ann", workflow_id="first")
        first = engine.start(deduplicated, "1")
        assert engine.show("first").execution.dedup_id == "ann"
        with pytest.raises(Conflict, match='"first|first;') as raised:
            client.start(run_measured_step.options(queue="sync", key="k", dedup_id="ann"), "2")
        assert raised.value.code == "SF-0039"
        assert "return_existing" in str(raised.value)
        second = run_measured_step.options(queue="sync", dedup_id="ann", on_duplicate="return_existing")
        existing = client.start(second, "2")
        assert existing.workflow_id == "first"
        engine.resume_queue("sync")
        assert (first.result(), existing.result()) == ("1", "1")
        assert engine.show("first").execution.dedup_id is None
        assert engine.run(run_measured_step.options(queue="sync", dedup_id="ann"), "3") == "3"


def test_invalid_dedup_options_are_refused() -> None:
    for options, message in [
        ({"dedup_id": "x"}, "needs a queue"),
        ({"queue": "a", "dedup_id": ""}, "dedup_id"),
        ({"queue": "a", "dedup_id": 5}, "dedup_id"),
        ({"queue": "a", "on_duplicate": "ignore"}, 'must be "reject" or "return_existing"'),
    ]:
        with pytest.raises(InvalidArgument, match=message):
            run_measured_step.options(**options)  # type: ignore[arg-type]


def test_start_many_starts_executions_in_one_call(url: str) -> None:
    with Engine(url, queues=[Queue("jobs", concurrency=20)]) as engine, Client(url) as client:
        placed = run_measured_step.options(queue="jobs", key="k", priority=4)
        handles = engine.start_many(placed, [(str(n),) for n in range(200)])
        assert [handle.result() for handle in handles] == [str(n) for n in range(200)]
        row = engine.show(handles[7].workflow_id).execution
        assert (row.queue, row.key, row.priority) == ("jobs", "k", 4)
        assert [it.result() for it in client.start_many(run_measured_step, iter([("a",), ("b",)]))] == [
            "a",
            "b",
        ]
        assert engine.start_many(run_measured_step, []) == []
        for options, items, message in [
            ({"workflow_id": "w"}, [("a",)], "leave it out"),
            (
                {"queue": "jobs", "dedup_id": "w"},
                [("a",)],
                "dedup_id is 'w', and start_many starts many executions",
            ),
            ({"queue": "jobs"}, ["a"], "is no tuple of arguments"),
            ({"queue": "nowhere"}, [("a",)], "does not exist"),
        ]:
            with pytest.raises(Error, match=message):
                engine.start_many(run_measured_step.options(**options), items)  # type: ignore[arg-type]


def test_async_engine_starts_many_executions(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            handles = await engine.start_many(double_after_sleep, [(n,) for n in range(50)])
            assert await engine.results(handles) == [2 * n for n in range(50)]

    asyncio.run(asyncio.wait_for(main(), HANG_TIMEOUT))


def test_debounced_starts_are_one_execution_with_last_input(url: str) -> None:
    with Engine(url, queues=[Queue("index")]) as engine, Client(url) as client:
        delayed = run_measured_step.options(queue="index", delay=3600, debounce="doc 7")
        first = engine.start(delayed, "1")
        row = engine.show(first.workflow_id).execution
        assert (row.status, row.debounce, row.dedup_id) == ("scheduled", "doc 7", None)
        again = run_measured_step.options(queue="index", delay=3600, debounce="doc 7", key="k", priority=2)
        assert client.start(again, "2").workflow_id == first.workflow_id
        other = engine.start(run_measured_step.options(queue="index", delay=3600, debounce="doc 8"), "3")
        assert other.workflow_id != first.workflow_id
        # max_delay limits the merged delay
        capped = run_measured_step.options(queue="index", delay=0, debounce="doc 7", max_delay=0)
        last = engine.start(capped, "4")
        assert (last.workflow_id, first.result(HANG_TIMEOUT)) == (first.workflow_id, "4")
        assert engine.show(first.workflow_id).execution.debounce is None
        assert engine.start(delayed, "5").workflow_id != first.workflow_id


def test_invalid_debounce_options_are_refused(sqlite_url: str) -> None:
    with Engine(sqlite_url, queues=[Queue("a")]) as engine:
        for options, message in [
            ({"debounce": "x", "delay": 1}, "needs a queue"),
            ({"queue": "a", "debounce": ""}, "debounce"),
            ({"queue": "a", "debounce": "x", "delay": 1, "max_delay": "1"}, "max_delay"),
        ]:
            with pytest.raises(InvalidArgument, match=message):
                run_measured_step.options(**options)  # type: ignore[arg-type]
        for options, message in [
            ({"queue": "a", "debounce": "x"}, "needs a delay"),
            ({"queue": "a", "debounce": "x", "delay": 1, "workflow_id": "w"}, "does not go with workflow_id"),
            ({"queue": "a", "debounce": "x", "delay": 2, "max_delay": 1}, "shorter than the delay"),
        ]:
            with pytest.raises(InvalidArgument, match=message):
                engine.start(run_measured_step.options(**options), "1")  # type: ignore[arg-type]
        large = run_measured_step.options(queue="a", debounce="x", delay=1)
        with pytest.raises(InvalidArgument, match="65536|64") as raised:
            engine.start(large, "x" * 70_000)
        assert raised.value.code == "SF-0007"


def test_full_queue_rejects_or_delays_starts(url: str) -> None:
    with Engine(url, queues=[Queue("jobs", max_depth=2)]) as engine, Client(url) as client:
        assert engine.queues()[0].max_depth == 2
        engine.pause_queue("jobs")
        first = [
            engine.start(run_measured_step.options(queue="jobs"), "0"),
            client.start(run_measured_step.options(queue="jobs"), "1"),
        ]
        with pytest.raises(QueueFull, match='on_full="wait"') as raised:
            client.start(run_measured_step.options(queue="jobs"), "2")
        assert (raised.value.code, isinstance(raised.value, Conflict)) == ("SF-0040", True)
        with pytest.raises((QueueFull, Unavailable)):
            engine.start(run_measured_step.options(queue="jobs", on_full="wait", wait_timeout=0.001), "2")
        waiting = run_measured_step.options(queue="jobs", on_full="wait")
        with ThreadPoolExecutor(5) as pool:
            outputs = pool.map(lambda n: engine.run(waiting, str(n)), range(5))
            engine.resume_queue("jobs")
            assert list(outputs) == ["0", "1", "2", "3", "4"]
        assert [handle.result() for handle in first] == ["0", "1"]


def test_coroutine_waits_for_capacity_of_full_queue(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url, queues=[Queue("jobs", max_depth=1)]) as engine:
            await engine.pause_queue("jobs")
            await engine.start(run_measured_step.options(queue="jobs"), "0")
            waiting = run_measured_step.options(queue="jobs", on_full="wait")
            outputs = asyncio.gather(*(engine.run(waiting, str(n)) for n in range(5)))
            with pytest.raises(QueueFull):
                await engine.start(run_measured_step.options(queue="jobs"), "1")
            await engine.resume_queue("jobs")
            assert await outputs == ["0", "1", "2", "3", "4"]

    asyncio.run(main())


def test_invalid_depth_options_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="max_depth of queue 'a' is 0"):
        Queue("a", max_depth=0)
    with pytest.raises(InvalidArgument, match='"reject" or "wait"'):
        run_measured_step.options(queue="a", on_full="drop")  # type: ignore[arg-type]


def test_run_timeout_begins_with_run(url: str) -> None:
    with Engine(url, queues=[Queue("a", concurrency=1)]) as engine:
        engine.pause_queue("a")
        timed = sleep_in_queue.options(queue="a", run_timeout=0.05, workflow_id="timed")
        handle = engine.start(timed, 3600)
        row = engine.show("timed").execution
        assert (row.status, row.run_timeout, row.deadline_at) == ("queued", timedelta(seconds=0.05), None)
        engine.resume_queue("a")
        with pytest.raises(WorkflowCancelled):
            handle.result(HANG_TIMEOUT)
        row = engine.show("timed").execution
        assert row.run_timeout is None
        assert row.deadline_at is not None
        with pytest.raises(WorkflowCancelled):
            engine.run(sleep_in_queue.options(run_timeout=0.05), 3600)
        with pytest.raises(InvalidArgument, match="run_timeout"):
            sleep_in_queue.options(run_timeout=-1)


def test_coroutines_await_self_claiming_starts(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url, queues=[Queue("free")]) as engine:
            placed: StartOptions = {"queue": "free", "key": "k"}
            for n in range(30):
                assert await engine.run(double_after_sleep.options(**placed), n) == 2 * n
                assert await engine.run(run_measured_step.options(**placed), str(n)) == str(n)
                handle = await engine.start(double_after_sleep.options(**placed), n)
                assert await handle.result() == 2 * n
            runs = (engine.run(double_after_sleep.options(**placed), n) for n in range(200))
            assert await asyncio.gather(*runs) == [2 * n for n in range(200)]

    asyncio.run(asyncio.wait_for(main(), HANG_TIMEOUT))


def test_threads_wait_for_self_claiming_starts(url: str) -> None:
    with Engine(url, queues=[Queue("free")]) as engine:
        placed = run_measured_step.options(queue="free")
        for n in range(30):
            assert engine.run(placed, str(n)) == str(n)
            assert engine.start(placed, str(n)).result(HANG_TIMEOUT) == str(n)
