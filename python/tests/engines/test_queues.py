"""Queues: what is put into them, their limits and turns, pauses, and who serves which."""

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


class Gauge:
    """What runs at the moment, the most that ever did, and in which order it began."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        self.now = self.most = 0
        self.order: list[str] = []

    def enter(self, name: str) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
            self.order.append(name)

    def leave(self) -> None:
        with self.lock:
            self.now -= 1


gauge = Gauge()


@step
def queue_measure(name: str) -> str:
    gauge.enter(name)
    # others get the chance to exceed a limit
    threading.Event().wait(0.002)
    gauge.leave()
    return name


@workflow
def queue_measured(name: str) -> str:
    return queue_measure(name)


@workflow
def queue_echo(*, queue: str, key: str = "") -> str:
    return f"{queue} {key}"


@workflow
async def queue_awaits(n: int) -> int:
    await sleep(0)
    return 2 * n


@workflow
def queue_sleeps(seconds: float) -> None:
    sleep(seconds)


@workflow
def queue_enqueues() -> None:
    engines[0].start(queue_measured.options(queue="emails"), "never")


engines: list[Engine] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    gauge.reset()


@pytest.fixture
def file(tmp_path: pathlib.Path) -> str:
    return f"sqlite:{tmp_path}/test.db"


def test_what_is_put_into_a_queue_runs(url: str) -> None:
    emails = Queue("emails", concurrency=2)
    with Engine(url, queues=[emails]) as engine:
        handle = engine.start(queue_measured.options(queue=emails), "a")
        assert handle.result(HANG_TIMEOUT) == "a"
        placed = queue_echo.options(workflow_id="w", queue="emails", key="ann", priority=-3)
        # all arguments by name are the workflow's
        assert engine.run(placed, queue="q", key="k") == "q k"
        assert engine.start(placed, queue="q", key="k").result(HANG_TIMEOUT) == "q k"
        assert engine.start(queue_echo.options(queue="emails"), queue="x").result(HANG_TIMEOUT) == "x "
        engine.run(queue_measured.options(workflow_id="none"), "b")

        shown = engine.show("w").execution
        assert (shown.queue, shown.key, shown.priority) == ("emails", "ann", -3)
        shown = engine.show(handle.workflow_id).execution
        assert (shown.queue, shown.key, shown.priority) == ("emails", None, 0)
        (listed,) = engine.list(id_prefix="none")
        assert (listed.queue, listed.key, listed.priority) == (None, None, 0)


def test_limits_hold(url: str) -> None:
    with Engine(url, queues=[Queue("emails", concurrency=2)]) as engine:
        handles = [engine.start(queue_measured.options(queue="emails"), str(n)) for n in range(30)]
        assert engine.results(handles) == [str(n) for n in range(30)]
        assert 1 <= gauge.most <= 2
        gauge.reset()
        engine.set_queue(Queue("emails", key_concurrency=1))
        starts = queue_measured.options(queue="emails", key="ann")
        engine.results([engine.start(starts, str(n)) for n in range(10)])
        assert (gauge.most, gauge.order) == (1, [str(n) for n in range(10)])


def test_urgent_ones_come_first_and_keys_take_turns(file: str) -> None:
    with Engine(file, queues=[Queue("emails", concurrency=1)]) as engine:
        engine.pause_queue("emails")
        handles = [
            engine.start(queue_measured.options(queue="emails", priority=priority), name)
            for name, priority in [("a", 5), ("b", None), ("c", -7), ("d", 5), ("e", 0)]
        ]
        engine.resume_queue("emails")
        engine.results(handles)
        assert gauge.order == ["c", "b", "e", "a", "d"]

        gauge.reset()
        engine.pause_queue("emails")
        handles = [
            engine.start(queue_measured.options(queue="emails", key=key), key)
            for key in [*["ann"] * 5, "bob"]
        ]
        engine.resume_queue("emails")
        engine.results(handles)
        assert gauge.order.index("bob") < 2


def test_a_key_has_as_many_turns_as_its_weight(file: str) -> None:
    weighted = Queue("emails", concurrency=1, key_weights={"ann": 3})
    with Engine(file, queues=[weighted]) as engine:
        assert engine.queues()[0].key_weights == {"ann": 3}
        engine.pause_queue("emails")
        handles = [
            engine.start(queue_measured.options(queue="emails", key=key), key)
            for key in [*["ann"] * 6, *["bob"] * 2]
        ]
        engine.resume_queue("emails")
        engine.results(handles)
        assert "".join(name[0] for name in gauge.order) == "aaabaaab"


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ({"ann": 0}, r"key_weights\['ann'\] of queue 'emails' is 0, and must be from 1 to 1000"),
        ({"ann": 1.5}, "must be a whole number"),
        ({"a\nn": 2}, "a key of key_weights of queue 'emails'"),
        (["ann"], "must be a dict"),
        ({str(n): 2 for n in range(1001)}, "has 1001 keys"),
    ],
)
def test_weights_that_cannot_be_are_refused(weights: Any, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        Queue("emails", key_weights=weights)


def test_a_sleeper_holds_no_place(file: str) -> None:
    with Engine(file, queues=[Queue("emails", concurrency=1)], suspend_after=0.001) as engine:
        asleep = engine.start(queue_sleeps.options(queue="emails"), 3600)
        assert engine.start(queue_measured.options(queue="emails"), "a").result(HANG_TIMEOUT) == "a"
        assert asleep.status() == "waiting"
        asleep.cancel()


def test_a_paused_queue_waits(url: str) -> None:
    emails = Queue("emails")
    with Engine(url, queues=[emails]) as engine, Client(url) as client:
        paused = client.pause_queue(emails)
        assert paused.is_paused and paused.version == 2
        assert client.pause_queue("emails") == paused
        handle = engine.start(queue_measured.options(queue="emails"), "a")
        assert engine.run(queue_measured, "b") == "b"
        assert handle.status() == "queued"
        # new limits do not let it go on
        assert client.set_queue(Queue("emails", concurrency=3)).is_paused
        resumed = client.resume_queue("emails")
        assert not resumed.is_paused and resumed.concurrency == 3
        assert handle.result(HANG_TIMEOUT) == "a"


def test_queues_are_listed(url: str) -> None:
    with Engine(url, queues=[Queue("b", concurrency=1, worker_concurrency=2, key_concurrency=3)]) as engine:
        made = engine.set_queue(Queue("a"))
        assert engine.set_queue(Queue("a")) == made
        a, b = engine.queues()
        assert a == made
        assert (b.name, b.concurrency, b.worker_concurrency, b.key_concurrency) == ("b", 1, 2, 3)
        assert (b.is_paused, b.version) == (False, 1)
        assert b.changed_at.tzinfo is UTC
        assert abs(datetime.now(UTC) - b.changed_at) < timedelta(minutes=5)


def test_declared_limits_meet_stored_ones(file: str) -> None:
    def stored(queue: Queue) -> QueueInfo:
        with Engine(file, queues=[queue]) as engine:
            return engine.queues()[0]

    assert stored(Queue("a", concurrency=1)).concurrency == 1
    assert stored(Queue("a", concurrency=2, on_conflict="keep")).concurrency == 1
    with pytest.raises(Conflict, match=r"'a'|\"a\".*other on_conflict") as raised:
        stored(Queue("a", concurrency=2, on_conflict="refuse"))
    assert raised.value.code == "SF-0038"
    assert stored(Queue("a", concurrency=1, on_conflict="refuse")).version == 1
    assert stored(Queue("a", concurrency=2)).concurrency == 2


def test_only_who_serves_a_queue_runs_it(url: str) -> None:
    queues = [Queue("a"), Queue("b")]
    with Engine(url, queues=queues, serve_queues=["b"]) as one:
        waits = one.start(queue_measured.options(queue="a"), "a")
        assert one.start(queue_measured.options(queue="b"), "b").result(HANG_TIMEOUT) == "b"
        # what has no queue runs where it is started
        assert one.run(queue_measured, "c") == "c"
        assert waits.status() == "queued"
        with Engine(url, serve_queues=[queues[0], "default"]):
            assert waits.result(HANG_TIMEOUT) == "a"


def test_clients_name_workflows(url: str) -> None:
    with Client(url) as client, Engine(url):
        client.set_queue(Queue("emails"))
        handle = client.start(RemoteWorkflow("queue_measured").options(queue="emails"), "a")
        assert handle.result(HANG_TIMEOUT) == "a"
        assert client.start(queue_measured.options(queue="emails"), "b").result(HANG_TIMEOUT) == "b"
        assert client.run(queue_measured.options(queue="emails"), "c") == "c"


async def everything_async(url: str) -> None:
    queues = [Queue("emails", concurrency=2)]
    async with AsyncEngine(url, queues=queues, serve_queues=["emails", "default"]) as engine:
        handle = await engine.start(queue_awaits.options(queue="emails"), 4)
        assert await handle == 8
        assert await (await engine.start(queue_measured.options(queue=queues[0]), "a")) == "a"
        placed = queue_awaits.options(queue="emails", key="ann", priority=1, workflow_id="w")
        assert await engine.run(placed, 5) == 10
        assert await (await engine.start(placed, 5)) == 10
        shown = (await engine.show("w")).execution
        assert (shown.queue, shown.key, shown.priority) == ("emails", "ann", 1)
        async with AsyncClient(url) as client:
            assert (await client.pause_queue("emails")).is_paused
            late = await client.start(RemoteWorkflow("queue_awaits").options(queue="emails"), 6)
            assert await engine.run(queue_awaits, 1) == 2
            assert await late.status() == "queued"
            assert not (await client.resume_queue(queues[0])).is_paused
            assert await late == 12
            assert (await client.set_queue(Queue("mail"))).version == 1
            assert [queue.name for queue in await client.queues()] == ["emails", "mail"]
        with pytest.raises(NotFound, match="does not exist"):
            await engine.start(queue_awaits.options(queue="post"), 1)
        with pytest.raises(NotFound, match="does not exist"):
            await engine.pause_queue("post")


def test_the_async_face_has_it_all(url: str) -> None:
    asyncio.run(everything_async(url))


def test_what_is_not_there_is_told(file: str) -> None:
    with Engine(file, queues=[Queue("emails")]) as engine:
        told = r'"mail" does not exist \(existing queues: emails\); declare it .* queues=\[Queue\("mail"\)\]'
        for ask in (
            lambda: engine.start(queue_measured.options(queue="mail"), "a"),
            lambda: engine.run(queue_measured.options(queue="mail"), "a"),
            lambda: engine.pause_queue("mail"),
            lambda: engine.resume_queue("mail"),
        ):
            with pytest.raises(NotFound, match=told) as raised:
                ask()
            assert raised.value.code == "SF-0037"
        assert engine.count() == 0


def test_a_workflow_starts_children_and_enqueues_nothing(file: str) -> None:
    with Engine(file, queues=[Queue("emails")]) as engine:
        engines[:] = [engine]
        with pytest.raises(InvalidArgument, match="called in the code of a workflow"):
            engine.run(queue_enqueues)


@pytest.mark.parametrize(
    ("given", "told"),
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
        ({"on_conflict": "ask"}, "is 'ask', and must be one of 'update', 'keep', 'refuse'"),
    ],
)
def test_queues_that_cannot_be_are_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        Queue(**{"name": "a", **given})


@pytest.mark.parametrize(
    ("given", "told"),
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
def test_options_that_cannot_be_are_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        queue_measured.options(**given)


@pytest.mark.parametrize("kind", [Engine, AsyncEngine])
@pytest.mark.parametrize(
    ("given", "told"),
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
def test_engines_that_cannot_be_are_refused(
    file: str, kind: type[Engine | AsyncEngine], given: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidArgument, match=told):
        kind(file, **given)


def test_what_else_cannot_be_is_refused(file: str) -> None:
    asked: Any
    with Engine(file) as asked:
        with pytest.raises(InvalidArgument, match="'emails' is no queue"):
            asked.set_queue("emails")
        with pytest.raises(InvalidArgument, match=r"is text: .* write RemoteWorkflow\('queue_measured'\)"):
            asked.start("queue_measured", "a")
        with pytest.raises(InvalidArgument, match="is no workflow: give a workflow, then its arguments"):
            asked.start(str.upper, "a")
        for change in (asked.pause_queue, asked.resume_queue):
            with pytest.raises(
                InvalidArgument, match="holds the executions without a queue, and cannot be paused"
            ):
                change("default")


def test_queues_are_values() -> None:
    queue = Queue("a", concurrency=1)
    assert queue == Queue("a", concurrency=1) != Queue("a")
    assert len({queue, Queue("a", concurrency=1)}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        queue.name = "b"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    assert dataclasses.replace(queue, concurrency=2).concurrency == 2


def test_the_program_pauses_what_an_engine_runs(file: str, program: pathlib.Path) -> None:
    with Engine(file, queues=[Queue("emails")]) as engine:
        command = [program, "queue", "pause", "emails", "--store", file]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        assert engine.queues()[0].is_paused


def test_rates_and_times_are_told_and_kept(url: str) -> None:
    rate, even = Rate(100, 60), Rate(1, per=0.25, burst=2)
    with Engine(url, queues=[Queue("a", rate=rate, key_rate=even)]) as engine:
        (info,) = engine.queues()
        assert (info.rate, info.key_rate) == (rate, even)
        later = engine.start(queue_measured.options(queue="a", delay=3600), "1")
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        at = engine.start(queue_measured.options(start_at=tomorrow), "2")
        assert (later.status(), at.status()) == ("scheduled", "scheduled")
        soon = engine.start(queue_measured.options(delay=0.001), "3")
        assert soon.result() == "3"
        past = engine.run(queue_measured.options(queue="a", start_at=tomorrow - timedelta(days=9)), "4")
        assert past == "4"
        at.cancel()


def test_a_rate_holds(url: str) -> None:
    with Engine(url, queues=[Queue("a", rate=Rate(2, 3600))]) as engine:
        handles = [engine.start(queue_measured.options(queue="a"), str(n)) for n in range(3)]
        assert [handle.result() for handle in handles[:2]] == ["0", "1"]
        assert handles[2].status() == "queued"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Rate(0, 1), "starts"),
        (lambda: Rate(1, 0), "period"),
        (lambda: Rate(1, 1, burst=0), "burst"),
        (lambda: Queue("a", rate=100), "must be a Rate"),  # type: ignore[arg-type]
    ],
)
def test_rates_that_cannot_be_are_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        make()


def test_times_that_cannot_be_are_refused() -> None:
    for options, says in [
        ({"delay": -1}, "delay is -1"),
        ({"delay": "1"}, "must be a number"),
        ({"start_at": 5}, "datetime with a time zone"),
        ({"start_at": datetime(2030, 1, 1)}, "datetime with a time zone"),
        ({"delay": 1, "start_at": datetime.now(UTC)}, "give one of them"),
    ]:
        with pytest.raises(InvalidArgument, match=says):
            queue_measured.options(**options)  # type: ignore[arg-type]


def test_one_of_a_dedup_id_at_a_time(url: str) -> None:
    with Engine(url, queues=[Queue("sync", concurrency=1)]) as engine, Client(url) as client:
        engine.pause_queue("sync")
        only = queue_measured.options(queue="sync", dedup_id="ann", workflow_id="first")
        first = engine.start(only, "1")
        assert engine.show("first").execution.dedup_id == "ann"
        with pytest.raises(Conflict, match='"first|first;') as raised:
            client.start(queue_measured.options(queue="sync", key="k", dedup_id="ann"), "2")
        assert raised.value.code == "SF-0039"
        assert "return_existing" in str(raised.value)
        second = queue_measured.options(queue="sync", dedup_id="ann", on_duplicate="return_existing")
        same = client.start(second, "2")
        assert same.workflow_id == "first"
        engine.resume_queue("sync")
        assert (first.result(), same.result()) == ("1", "1")
        assert engine.show("first").execution.dedup_id is None
        assert engine.run(queue_measured.options(queue="sync", dedup_id="ann"), "3") == "3"


def test_dedup_ids_that_cannot_be_are_refused() -> None:
    for options, says in [
        ({"dedup_id": "x"}, "needs a queue"),
        ({"queue": "a", "dedup_id": ""}, "dedup_id"),
        ({"queue": "a", "dedup_id": 5}, "dedup_id"),
        ({"queue": "a", "on_duplicate": "ignore"}, 'must be "reject" or "return_existing"'),
    ]:
        with pytest.raises(InvalidArgument, match=says):
            queue_measured.options(**options)  # type: ignore[arg-type]


def test_many_are_started_in_one_call(url: str) -> None:
    with Engine(url, queues=[Queue("jobs", concurrency=20)]) as engine, Client(url) as client:
        place = queue_measured.options(queue="jobs", key="k", priority=4)
        handles = engine.start_many(place, [(str(n),) for n in range(200)])
        assert [handle.result() for handle in handles] == [str(n) for n in range(200)]
        row = engine.show(handles[7].workflow_id).execution
        assert (row.queue, row.key, row.priority) == ("jobs", "k", 4)
        assert [it.result() for it in client.start_many(queue_measured, iter([("a",), ("b",)]))] == ["a", "b"]
        assert engine.start_many(queue_measured, []) == []
        for options, items, says in [
            ({"workflow_id": "w"}, [("a",)], "leave it out"),
            (
                {"queue": "jobs", "dedup_id": "w"},
                [("a",)],
                "dedup_id is 'w', and start_many starts many executions",
            ),
            ({"queue": "jobs"}, ["a"], "is no tuple of arguments"),
            ({"queue": "nowhere"}, [("a",)], "does not exist"),
        ]:
            with pytest.raises(Error, match=says):
                engine.start_many(queue_measured.options(**options), items)  # type: ignore[arg-type]


def test_a_coroutine_starts_many(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            handles = await engine.start_many(queue_awaits, [(n,) for n in range(50)])
            assert await engine.results(handles) == [2 * n for n in range(50)]

    asyncio.run(asyncio.wait_for(main(), HANG_TIMEOUT))


def test_what_is_debounced_begins_once_with_the_last_arguments(url: str) -> None:
    with Engine(url, queues=[Queue("index")]) as engine, Client(url) as client:
        late = queue_measured.options(queue="index", delay=3600, debounce="doc 7")
        first = engine.start(late, "1")
        row = engine.show(first.workflow_id).execution
        assert (row.status, row.debounce, row.dedup_id) == ("scheduled", "doc 7", None)
        again = queue_measured.options(queue="index", delay=3600, debounce="doc 7", key="k", priority=2)
        assert client.start(again, "2").workflow_id == first.workflow_id
        other = engine.start(queue_measured.options(queue="index", delay=3600, debounce="doc 8"), "3")
        assert other.workflow_id != first.workflow_id
        # it is not put off for longer than that
        capped = queue_measured.options(queue="index", delay=0, debounce="doc 7", max_delay=0)
        last = engine.start(capped, "4")
        assert (last.workflow_id, first.result(HANG_TIMEOUT)) == (first.workflow_id, "4")
        assert engine.show(first.workflow_id).execution.debounce is None
        assert engine.start(late, "5").workflow_id != first.workflow_id


def test_debounces_that_cannot_be_are_refused(file: str) -> None:
    with Engine(file, queues=[Queue("a")]) as engine:
        for options, says in [
            ({"debounce": "x", "delay": 1}, "needs a queue"),
            ({"queue": "a", "debounce": ""}, "debounce"),
            ({"queue": "a", "debounce": "x", "delay": 1, "max_delay": "1"}, "max_delay"),
        ]:
            with pytest.raises(InvalidArgument, match=says):
                queue_measured.options(**options)  # type: ignore[arg-type]
        for options, says in [
            ({"queue": "a", "debounce": "x"}, "needs a delay"),
            ({"queue": "a", "debounce": "x", "delay": 1, "workflow_id": "w"}, "does not go with workflow_id"),
            ({"queue": "a", "debounce": "x", "delay": 2, "max_delay": 1}, "shorter than the delay"),
        ]:
            with pytest.raises(InvalidArgument, match=says):
                engine.start(queue_measured.options(**options), "1")  # type: ignore[arg-type]
        long = queue_measured.options(queue="a", debounce="x", delay=1)
        with pytest.raises(InvalidArgument, match="65536|64") as raised:
            engine.start(long, "x" * 70_000)
        assert raised.value.code == "SF-0007"


def test_a_full_queue_refuses_or_lets_wait(url: str) -> None:
    with Engine(url, queues=[Queue("jobs", max_depth=2)]) as engine, Client(url) as client:
        assert engine.queues()[0].max_depth == 2
        engine.pause_queue("jobs")
        first = [
            engine.start(queue_measured.options(queue="jobs"), "0"),
            client.start(queue_measured.options(queue="jobs"), "1"),
        ]
        with pytest.raises(QueueFull, match='on_full="wait"') as raised:
            client.start(queue_measured.options(queue="jobs"), "2")
        assert (raised.value.code, isinstance(raised.value, Conflict)) == ("SF-0040", True)
        with pytest.raises((QueueFull, Unavailable)):
            engine.start(queue_measured.options(queue="jobs", on_full="wait", wait_timeout=0.001), "2")
        waiting = queue_measured.options(queue="jobs", on_full="wait")
        with ThreadPoolExecutor(5) as pool:
            outputs = pool.map(lambda n: engine.run(waiting, str(n)), range(5))
            engine.resume_queue("jobs")
            assert list(outputs) == ["0", "1", "2", "3", "4"]
        assert [handle.result() for handle in first] == ["0", "1"]


def test_a_coroutine_waits_for_room(url: str) -> None:
    async def waits() -> None:
        async with AsyncEngine(url, queues=[Queue("jobs", max_depth=1)]) as engine:
            await engine.pause_queue("jobs")
            await engine.start(queue_measured.options(queue="jobs"), "0")
            patient = queue_measured.options(queue="jobs", on_full="wait")
            waiting = asyncio.gather(*(engine.run(patient, str(n)) for n in range(5)))
            with pytest.raises(QueueFull):
                await engine.start(queue_measured.options(queue="jobs"), "1")
            await engine.resume_queue("jobs")
            assert await waiting == ["0", "1", "2", "3", "4"]

    asyncio.run(waits())


def test_depths_that_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="max_depth of queue 'a' is 0"):
        Queue("a", max_depth=0)
    with pytest.raises(InvalidArgument, match='"reject" or "wait"'):
        queue_measured.options(queue="a", on_full="drop")  # type: ignore[arg-type]


def test_a_timeout_may_begin_with_the_execution(url: str) -> None:
    with Engine(url, queues=[Queue("a", concurrency=1)]) as engine:
        engine.pause_queue("a")
        timed = queue_sleeps.options(queue="a", run_timeout=0.05, workflow_id="timed")
        handle = engine.start(timed, 3600)
        row = engine.show("timed").execution
        assert (row.status, row.run_timeout, row.deadline_at) == ("queued", 0.05, None)
        engine.resume_queue("a")
        with pytest.raises(WorkflowCancelled):
            handle.result(HANG_TIMEOUT)
        row = engine.show("timed").execution
        assert row.run_timeout is None
        assert row.deadline_at is not None
        with pytest.raises(WorkflowCancelled):
            engine.run(queue_sleeps.options(run_timeout=0.05), 3600)
        with pytest.raises(InvalidArgument, match="run_timeout"):
            queue_sleeps.options(run_timeout=-1)


def test_what_begins_at_once_is_awaited_like_everything(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url, queues=[Queue("free")]) as engine:
            place: StartOptions = {"queue": "free", "key": "k"}
            for n in range(30):
                assert await engine.run(queue_awaits.options(**place), n) == 2 * n
                assert await engine.run(queue_measured.options(**place), str(n)) == str(n)
                handle = await engine.start(queue_awaits.options(**place), n)
                assert await handle.result() == 2 * n
            many = (engine.run(queue_awaits.options(**place), n) for n in range(200))
            assert await asyncio.gather(*many) == [2 * n for n in range(200)]

    asyncio.run(asyncio.wait_for(main(), HANG_TIMEOUT))


def test_what_begins_at_once_is_waited_for_like_everything(url: str) -> None:
    with Engine(url, queues=[Queue("free")]) as engine:
        place = queue_measured.options(queue="free")
        for n in range(30):
            assert engine.run(place, str(n)) == str(n)
            assert engine.start(place, str(n)).result(HANG_TIMEOUT) == str(n)
