"""Hostile values: each option, id, name and parameter takes each of them or refuses it, by name, at the door.

What a store takes must work, and an innocent execution beside it comes to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any
from urllib.parse import quote, urlsplit

import psycopg
import pytest
from stores import postgres_database

from stepfast import (
    AsyncEngine,
    Client,
    Conflict,
    Engine,
    Error,
    Instance,
    InvalidArgument,
    NotFound,
    Outbox,
    Queue,
    QueueFull,
    Rate,
    Unavailable,
    WorkflowCancelled,
    WorkflowFailed,
    sleep,
    step,
    workflow,
)

#: An execution that takes longer hangs.
HANG_TIMEOUT = 60.0
LONGEST_MESSAGE = 4_000

VALUES: list[Any] = [
    *(0, 1, -1, 2, 1023, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, -(2**63), 10**30, -(10**30)),
    *(0.0, 0.5, -0.5, 1e-300, 1e13, 1e300, math.inf, -math.inf, math.nan),
    *("", " ", "a", "a", "default", "x" * 255, "x" * 256, "x" * 1025, "x" * 100_000, "é" * 200),
    *("a\0b", "\0", "\ud800", "a\ud800b", "a\nb", "\x7f", "\u202e", "🦄", "👩‍👩‍👧", "0", "-1", "inf"),
    *("'", '"', "';--", "%", "%s", "\\", "$1", "a=b", "a/b", "{}", "01a20b8f-64bf-7000-8000-000000000000"),
    *(None, True, False, b"", b"bytes", [], ["a"], ["a", "a"], [None], (), ("a",), {}, {"a": "b"}),
    *({"": ""}, {1: 2}, {"a": None}, {"a\0": "b"}, {"a": "\ud800"}, {"x" * 1000: "x" * 10_000}, {"=": "a"}),
    *(set(), object(), object, lambda: 1, lambda _: True, Decimal("NaN"), Decimal(1), Fraction(1, 2), 1j),
    *(datetime.max, datetime.min, datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)),
    *(datetime(2026, 1, 1, tzinfo=UTC), timedelta(1), timedelta.max, Rate(1, per=1), Queue("a")),
]

#: What a call may come to besides: it is documented, and no hostile value brings it about.
DOCUMENTED = (Conflict, NotFound, QueueFull, WorkflowCancelled)

CURRENT: list[Any] = []
BESIDE: list[int] = []


@step
def innocent_step(n: int) -> int:
    return n


@workflow
def innocent(n: int) -> int:
    return innocent_step(n)


@workflow
def starts_hostile_child(option: str) -> str:
    (value,) = CURRENT
    with_queue = {"queue": "hostile"} if option in ("key", "priority") else {}
    return innocent.options(**with_queue, **{option: value}).start_detached(1)


@workflow
def calls_hostile_step() -> int:
    made, value = CURRENT
    called: int = made(value)
    return called


@workflow
def waits_as_told() -> None:
    (value,) = CURRENT
    sleep(value)


@workflow
def echoes(value: Any) -> Any:
    return value


class Store:
    """A store with an engine that is open on it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = Engine(url, queues=[Queue("hostile")])
        self.number = 0

    def fresh(self) -> str:
        self.number += 1
        return f"fresh-{self.number}"

    def check_innocents(self) -> None:
        """What others do comes to its end: by a caller, on a thread, in a queue."""
        engine = self.engine
        assert engine.run(innocent, 1) == 1
        handles = [
            engine.start(innocent, 2),
            engine.start(innocent.options(queue="hostile"), 3),
            engine.start(innocent.options(workflow_id=f"innocent-{self.fresh()}"), 4),
            engine.start(innocent.options(queue="hostile", key="k", delay=0.0), 5),
        ]
        assert [handle.result(HANG_TIMEOUT) for handle in handles] == [2, 3, 4, 5]


@pytest.fixture(scope="module", params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with contextlib.ExitStack() as stack:
        if request.param == "memory":
            url = "memory:"
        elif request.param == "sqlite":
            url = f"sqlite:{tmp_path_factory.mktemp('hostile')}/test.db"
        else:
            url = stack.enter_context(postgres_database())
        made = Store(url)
        stack.callback(made.engine.close)
        yield made


#: Does something with a value; raises, or it worked.
Door = Callable[[Store, Any], object]


def start(option: str, **beside: Any) -> Door:
    """Starts an execution with an option."""

    def enter(store: Store, value: Any) -> object:
        handle = store.engine.start(innocent.options(**beside, **{option: value}), 1)
        # it is there, under the id that it has
        return store.engine.get(handle.workflow_id).status()

    return enter


def child(option: str) -> Door:
    def enter(store: Store, value: Any) -> object:
        CURRENT[:] = [value]
        return store.engine.run(starts_hostile_child, option)

    return enter


def of_step(option: str) -> Door:
    def enter(store: Store, value: Any) -> object:
        made = step(**{"name": "hostile_step", option: value})(lambda n: n)
        CURRENT[:] = [made, 7]
        assert store.engine.run(calls_hostile_step) == 7
        return None

    return enter


def of_workflow(option: str) -> Door:
    def enter(store: Store, value: Any) -> object:
        def made(n: int) -> int:
            return n

        made.__qualname__ = f"hostile_workflow_{store.fresh()}"
        defined = workflow(**{option: value})(made)
        with Engine("memory:") as engine:
            assert engine.run(defined, 7) == 7
        return None

    return enter


def of_engine(option: str) -> Door:
    def enter(store: Store, value: Any) -> object:
        with Engine(store.url, **{option: value}) as engine:
            return engine.count()

    return enter


def of_async_engine(option: str) -> Door:
    def enter(_store: Store, value: Any) -> object:
        async def main() -> None:
            async with AsyncEngine("memory:", **{option: value}):
                pass

        asyncio.run(main())
        return None

    return enter


def of_queue(option: str) -> Door:
    def enter(store: Store, value: Any) -> object:
        queue = Queue(**{"name": f"queue-{store.fresh()}", option: value})
        store.engine.set_queue(queue)
        found = next(info for info in store.engine.queues() if info.name == queue.name)
        assert getattr(found, option, value) == getattr(queue, option)
        # the first one may begin whatever the limits are
        assert store.engine.start(innocent.options(queue=queue), 9).result(HANG_TIMEOUT) == 9
        return None

    return enter


def of_rate(option: str) -> Door:
    def enter(store: Store, value: Any) -> object:
        rate = Rate(**{"starts": 1, "per": 1.0, option: value})
        queue = Queue(f"rated-{store.fresh()}", rate=rate, key_rate=rate)
        store.engine.set_queue(queue)
        assert store.engine.start(innocent.options(queue=queue, key="k"), 9).result(HANG_TIMEOUT) == 9
        return None

    return enter


def listed(option: str) -> Door:
    def enter(store: Store, value: Any) -> object:
        found = store.engine.list(**{option: value})
        if option not in ("limit", "after"):
            assert store.engine.count(**{option: value}) >= len(found)
            # of those that match nothing else
            store.engine.cancel_all(workflow="nobody's", **{option: value} if option != "workflow" else {})
        return found

    return enter


def asked(name: str) -> Door:
    """Asks for an execution, or for a queue, by its name."""
    return lambda store, value: getattr(store.engine, name)(value)


def result(store: Store, value: Any) -> object:
    handle = store.engine.start(innocent, 1)
    assert handle.result(HANG_TIMEOUT) == 1
    return handle.result(value)


def closing(verb: str) -> Door:
    def enter(_store: Store, value: Any) -> object:
        engine = Engine("memory:")
        try:
            return getattr(engine, verb)(value)
        finally:
            engine.close()

    return enter


def argument(store: Store, value: Any) -> object:
    output = store.engine.run(echoes, value)
    assert repr(output) == repr(value) and type(output) is type(value)
    return output


def named(store: Store, value: Any) -> object:
    """Starts a workflow by its name, as clients may."""
    with Client(store.url) as client:
        handle = client.start(value, 1)
        return handle.cancel()


def sleeps(store: Store, value: Any) -> object:
    if isinstance(value, (int, float, Fraction)) and not value <= 1:
        # too long to wait for; not a number is refused
        value = math.nan if value != value else 0
    if isinstance(value, timedelta) and value > timedelta(seconds=1):
        value = timedelta(0)
    CURRENT[:] = [value]
    return store.engine.run(waits_as_told)


def instance(_store: Store, value: Any) -> object:
    return type("HostileInstance", (Instance,), {})(value)


def of_outbox(option: str, **beside: Any) -> Door:
    def enter(store: Store, value: Any) -> object:
        outbox = innocent.options(**beside, **{option: value})
        if not store.url.startswith("postgres"):
            # SQLite's file is open here: what would be put there is made, and no more
            connection: Any = sqlite3.connect(":memory:")
            with contextlib.closing(connection), contextlib.suppress(sqlite3.OperationalError):
                Outbox().start(connection, outbox, 1)
            return None
        plain = urlsplit(store.url)._replace(scheme="postgresql", query="").geturl()
        with psycopg.connect(plain) as connection:
            return Outbox().start(connection, outbox, 1)

    return enter


def of_url(parameter: str) -> Door:
    """Opens an engine on an URL with a parameter of that text."""

    def enter(store: Store, value: Any) -> object:
        if not isinstance(value, str):
            # an URL is text, and each schema of Postgres has all tables
            return None
        joined = "&" if "?" in store.url else "?"
        parameters = f"{parameter}={quote(value, errors='surrogatepass')}"
        with Engine(f"{store.url}{joined}{parameters}") as engine:
            return engine.count()

    return enter


TIMED = {"delay": 0.01}
QUEUED = {"queue": "hostile"}
DOORS: dict[str, Door] = {
    **{
        f"start {it}": start(it)
        for it in ("workflow_id", "execution_timeout", "run_timeout", "wait_timeout", "queue")
    },
    **{f"start {it}": start(it) for it in ("delay", "start_at", "attributes")},
    **{f"start {it}": start(it, **QUEUED) for it in ("key", "priority", "dedup_id", "on_full")},
    "start on_duplicate": start("on_duplicate", dedup_id="d", **QUEUED),
    "start debounce": start("debounce", **QUEUED, **TIMED),
    "start max_delay": start("max_delay", debounce="d", **QUEUED, **TIMED),
    **{
        f"child {it}": child(it)
        for it in ("queue", "key", "priority", "delay", "start_at", "run_timeout", "attributes")
    },
    **{
        f"step {it}": of_step(it)
        for it in ("name", "retries", "backoff", "backoff_factor", "max_backoff", "jitter", "timeout")
    },
    **{f"step {it}": of_step(it) for it in ("speculative", "retry_if")},
    **{f"workflow {it}": of_workflow(it) for it in ("name", "durable_reads")},
    **{
        f"engine {it}": of_engine(it)
        for it in (
            "max_running",
            "suspend_after",
            "value_limit",
            "max_threads",
            "max_processes",
            "app_version",
        )
    },
    **{f"engine {it}": of_engine(it) for it in ("max_recoveries", "queues", "serve_queues")},
    "async engine url": lambda _store, value: asyncio.run(AsyncEngine(value).close()),
    **{f"async engine {it}": of_async_engine(it) for it in ("max_running", "suspend_after", "queues")},
    "client url": lambda _store, value: Client(value).close(),
    "client workflow": named,
    **{
        f"queue {it}": of_queue(it)
        for it in ("name", "concurrency", "worker_concurrency", "key_concurrency", "rate", "key_rate")
    },
    **{f"queue {it}": of_queue(it) for it in ("max_depth", "key_weights", "on_conflict")},
    **{f"rate {it}": of_rate(it) for it in ("starts", "per", "burst")},
    **{
        f"list {it}": listed(it)
        for it in ("status", "workflow", "is_parked", "parent", "id_prefix", "app_version", "queue")
    },
    **{f"list {it}": listed(it) for it in ("attributes", "created_from", "created_before", "limit", "after")},
    **{f"ask {it}": asked(it) for it in ("get", "show", "cancel", "resume", "pause_queue", "resume_queue")},
    "ask set_queue": asked("set_queue"),
    "result timeout": result,
    **{f"end {it}": closing(it) for it in ("close", "drain")},
    "argument value": argument,
    "sleep seconds": sleeps,
    "instance name": instance,
    "outbox schema": lambda _store, value: Outbox(value),
    "outbox notify": lambda _store, value: Outbox(notify=value),
    **{
        f"outbox {it}": of_outbox(it)
        for it in (
            "workflow_id",
            "execution_timeout",
            "run_timeout",
            "queue",
            "delay",
            "start_at",
            "attributes",
        )
    },
    **{f"outbox {it}": of_outbox(it, **QUEUED) for it in ("key", "priority", "dedup_id")},
    **{f"url {it}": of_url(it) for it in ("durability", "nothing", "schema", "readers", "pooling", "listen")},
    **{f"url {it}": of_url(it) for it in ("application_name", "connect_timeout", "sslmode")},
}

#: What the message of a refusal names, where it is not the option.
NAMED: dict[str, tuple[str, ...]] = {
    "client workflow": ("workflow",),
    "ask get": ("workflow_id",),
    "ask show": ("workflow_id",),
    "ask cancel": ("workflow_id",),
    "ask resume": ("workflow_id",),
    "ask pause_queue": ("queue",),
    "ask resume_queue": ("queue",),
    "ask set_queue": ("queue",),
    "end close": ("grace",),
    "end drain": ("grace",),
    "argument value": ("argument 1",),
    "rate starts": ("starts of a rate",),
    "rate per": ("period of a rate",),
    "rate burst": ("burst of a rate",),
    "client url": ("url", "URL", "store", "scheme"),
    "async engine url": ("url",),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_value_works_or_is_refused_by_name(store: Store, door: str) -> None:
    names = NAMED.get(door, (door.split()[-1],))
    wrong: list[str] = []
    taken = 0
    for value in VALUES:
        shown = f"{door}={value!r:.60}"
        try:
            DOORS[door](store, value)
        except InvalidArgument as error:
            said = str(error)
            if not any(name in said for name in names):
                wrong.append(f"{shown} is refused without the name: {said:.200}")
            if len(said) > LONGEST_MESSAGE:
                wrong.append(f"{shown} is refused in {len(said)} characters")
        except DOCUMENTED:
            taken += 1
        except (Unavailable, WorkflowFailed) as error:
            # the wait is over at once; the queue of a child does not exist
            if door not in ("start wait_timeout", "child queue"):
                wrong.append(f"{shown} raised {error!r:.200}")
        except Error as error:
            # a value that cannot be recorded
            if door != "argument value":
                wrong.append(f"{shown} raised {error!r:.200}")
        except BaseException as error:
            wrong.append(f"{shown} raised {error!r:.200}")
        else:
            taken += 1
    store.check_innocents()
    assert not wrong, "\n".join(["", *wrong])


def test_what_hostile_values_have_left_is_listed_and_ends(store: Store) -> None:
    engine = store.engine
    for execution in engine.list(limit=10_000):
        engine.get(execution.workflow_id)
    engine.cancel_all(queue="hostile")
    engine.cancel_all(workflow=innocent)
    store.check_innocents()
