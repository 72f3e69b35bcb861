"""Hostile values for every option, id, name and parameter.

Each call accepts a value, or refuses it with the name of the argument. Unaffected executions still complete.
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

#: Maximum time of each wait for an execution, in seconds.
HANG_TIMEOUT = 60.0
MAX_MESSAGE_CHARACTERS = 4_000

HOSTILE_VALUES: list[Any] = [
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

#: Documented errors of a call, for other reasons than the hostile value.
DOCUMENTED_ERRORS = (Conflict, NotFound, QueueFull, WorkflowCancelled)

#: The arguments of the workflows below, which cannot be recorded.
CURRENT_ARGUMENTS: list[Any] = []


@step
def return_unaffected(n: int) -> int:
    return n


@workflow
def run_unaffected_step(n: int) -> int:
    return return_unaffected(n)


@workflow
def start_hostile_child(option: str) -> str:
    (value,) = CURRENT_ARGUMENTS
    with_queue = {"queue": "hostile"} if option in ("key", "priority") else {}
    return run_unaffected_step.options(**with_queue, **{option: value}).start_detached(1)


@workflow
def call_hostile_step() -> int:
    body, value = CURRENT_ARGUMENTS
    output: int = body(value)
    return output


@workflow
def sleep_for_current_value() -> None:
    (value,) = CURRENT_ARGUMENTS
    sleep(value)


@workflow
def return_hostile_value(value: Any) -> Any:
    return value


class OpenStore:
    """A store with an open engine."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = Engine(url, queues=[Queue("hostile")])
        self.number = 0

    def next_id(self) -> str:
        """Returns a text that no earlier call returned."""
        self.number += 1
        return f"id-{self.number}"

    def check_unaffected_executions(self) -> None:
        """Checks that executions without hostile values complete: of callers, of threads and of a queue."""
        engine = self.engine
        assert engine.run(run_unaffected_step, 1) == 1
        handles = [
            engine.start(run_unaffected_step, 2),
            engine.start(run_unaffected_step.options(queue="hostile"), 3),
            engine.start(run_unaffected_step.options(workflow_id=f"unaffected-{self.next_id()}"), 4),
            engine.start(run_unaffected_step.options(queue="hostile", key="k", delay=0.0), 5),
        ]
        assert [handle.result(HANG_TIMEOUT) for handle in handles] == [2, 3, 4, 5]


@pytest.fixture(scope="module", params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenStore]:
    """A store of each kind, with an open engine."""
    with contextlib.ExitStack() as stack:
        if request.param == "memory":
            url = "memory:"
        elif request.param == "sqlite":
            url = f"sqlite:{tmp_path_factory.mktemp('hostile')}/test.db"
        else:
            url = stack.enter_context(postgres_database())
        opened = OpenStore(url)
        stack.callback(opened.engine.close)
        yield opened


#: An operation with a hostile value, which raises an error or works.
Operation = Callable[[OpenStore, Any], object]


def start_with_option(option: str, **others: Any) -> Operation:
    """Returns the start of an execution with a hostile option."""

    def use(store: OpenStore, value: Any) -> object:
        handle = store.engine.start(run_unaffected_step.options(**others, **{option: value}), 1)
        # the execution can be found by its id
        return store.engine.get(handle.workflow_id).status()

    return use


def start_child_with_option(option: str) -> Operation:
    def use(store: OpenStore, value: Any) -> object:
        CURRENT_ARGUMENTS[:] = [value]
        return store.engine.run(start_hostile_child, option)

    return use


def call_step_with_option(option: str) -> Operation:
    def use(store: OpenStore, value: Any) -> object:
        body = step(**{"name": "hostile_step", option: value})(lambda n: n)
        CURRENT_ARGUMENTS[:] = [body, 7]
        assert store.engine.run(call_hostile_step) == 7
        return None

    return use


def run_workflow_with_option(option: str) -> Operation:
    def use(store: OpenStore, value: Any) -> object:
        def function(n: int) -> int:
            return n

        function.__qualname__ = f"hostile_workflow_{store.next_id()}"
        defined = workflow(**{option: value})(function)
        with Engine("memory:") as engine:
            assert engine.run(defined, 7) == 7
        return None

    return use


def open_engine_with_option(option: str) -> Operation:
    def use(store: OpenStore, value: Any) -> object:
        with Engine(store.url, **{option: value}) as engine:
            return engine.count()

    return use


def open_async_engine_with_option(option: str) -> Operation:
    def use(_store: OpenStore, value: Any) -> object:
        async def main() -> None:
            async with AsyncEngine("memory:", **{option: value}):
                pass

        asyncio.run(main())
        return None

    return use


def set_queue_with_option(option: str) -> Operation:
    def use(store: OpenStore, value: Any) -> object:
        queue = Queue(**{"name": f"queue-{store.next_id()}", option: value})
        store.engine.set_queue(queue)
        found = next(info for info in store.engine.queues() if info.name == queue.name)
        assert getattr(found, option, value) == getattr(queue, option)
        # all limits permit the first execution
        assert store.engine.start(run_unaffected_step.options(queue=queue), 9).result(HANG_TIMEOUT) == 9
        return None

    return use


def set_rate_with_option(option: str) -> Operation:
    def use(store: OpenStore, value: Any) -> object:
        rate = Rate(**{"starts": 1, "per": 1.0, option: value})
        queue = Queue(f"rated-{store.next_id()}", rate=rate, key_rate=rate)
        store.engine.set_queue(queue)
        assert (
            store.engine.start(run_unaffected_step.options(queue=queue, key="k"), 9).result(HANG_TIMEOUT) == 9
        )
        return None

    return use


def list_with_condition(option: str) -> Operation:
    def use(store: OpenStore, value: Any) -> object:
        found = store.engine.list(**{option: value})
        if option not in ("limit", "after"):
            assert store.engine.count(**{option: value}) >= len(found)
            # the name of the workflow prevents every match
            store.engine.cancel_all(workflow="other's", **{option: value} if option != "workflow" else {})
        return found

    return use


def call_method(name: str) -> Operation:
    """Returns a call of a method of the engine with a hostile argument."""
    return lambda store, value: getattr(store.engine, name)(value)


def wait_for_result(store: OpenStore, value: Any) -> object:
    handle = store.engine.start(run_unaffected_step, 1)
    assert handle.result(HANG_TIMEOUT) == 1
    return handle.result(value)


def end_engine(verb: str) -> Operation:
    def use(_store: OpenStore, value: Any) -> object:
        engine = Engine("memory:")
        try:
            return getattr(engine, verb)(value)
        finally:
            engine.close()

    return use


def return_argument(store: OpenStore, value: Any) -> object:
    output = store.engine.run(return_hostile_value, value)
    assert repr(output) == repr(value) and type(output) is type(value)
    return output


def start_by_name(store: OpenStore, value: Any) -> object:
    """Starts and cancels an execution of a workflow that a client gives by name."""
    with Client(store.url) as client:
        handle = client.start(value, 1)
        return handle.cancel()


def sleep_for(store: OpenStore, value: Any) -> object:
    if isinstance(value, (int, float, Fraction)) and not value <= 1:
        # larger values would take too long; the call refuses NaN
        value = math.nan if value != value else 0
    if isinstance(value, timedelta) and value > timedelta(seconds=1):
        value = timedelta(0)
    CURRENT_ARGUMENTS[:] = [value]
    return store.engine.run(sleep_for_current_value)


def create_instance(_store: OpenStore, value: Any) -> object:
    return type("HostileInstance", (Instance,), {})(value)


def send_with_option(option: str, **others: Any) -> Operation:
    def use(store: OpenStore, value: Any) -> object:
        outbox = run_unaffected_step.options(**others, **{option: value})
        if not store.url.startswith("postgres"):
            # the engine has the SQLite file open, so only the row is built
            connection: Any = sqlite3.connect(":memory:")
            with contextlib.closing(connection), contextlib.suppress(sqlite3.OperationalError):
                Outbox().start(connection, outbox, 1)
            return None
        plain = urlsplit(store.url)._replace(scheme="postgresql", query="").geturl()
        with psycopg.connect(plain) as connection:
            return Outbox().start(connection, outbox, 1)

    return use


def open_url_with_parameter(parameter: str) -> Operation:
    """Returns the opening of an engine by a URL with a hostile parameter."""

    def use(store: OpenStore, value: Any) -> object:
        if not isinstance(value, str):
            # a parameter of a URL is text
            return None
        joined = "&" if "?" in store.url else "?"
        parameters = f"{parameter}={quote(value, errors='surrogatepass')}"
        with Engine(f"{store.url}{joined}{parameters}") as engine:
            return engine.count()

    return use


DELAY_OPTIONS = {"delay": 0.01}
QUEUE_OPTIONS = {"queue": "hostile"}
OPERATIONS: dict[str, Operation] = {
    **{
        f"start {it}": start_with_option(it)
        for it in ("workflow_id", "execution_timeout", "run_timeout", "wait_timeout", "queue")
    },
    **{f"start {it}": start_with_option(it) for it in ("delay", "start_at", "attributes")},
    **{
        f"start {it}": start_with_option(it, **QUEUE_OPTIONS)
        for it in ("key", "priority", "dedup_id", "on_full")
    },
    "start on_duplicate": start_with_option("on_duplicate", dedup_id="d", **QUEUE_OPTIONS),
    "start debounce": start_with_option("debounce", **QUEUE_OPTIONS, **DELAY_OPTIONS),
    "start max_delay": start_with_option("max_delay", debounce="d", **QUEUE_OPTIONS, **DELAY_OPTIONS),
    **{
        f"child {it}": start_child_with_option(it)
        for it in ("queue", "key", "priority", "delay", "start_at", "run_timeout", "attributes")
    },
    **{
        f"step {it}": call_step_with_option(it)
        for it in ("name", "retries", "backoff", "backoff_factor", "max_backoff", "jitter", "timeout")
    },
    **{f"step {it}": call_step_with_option(it) for it in ("speculative", "retry_if")},
    **{f"workflow {it}": run_workflow_with_option(it) for it in ("name", "durable_reads")},
    **{
        f"engine {it}": open_engine_with_option(it)
        for it in (
            "max_running",
            "suspend_after",
            "value_limit",
            "max_threads",
            "max_processes",
            "app_version",
        )
    },
    **{f"engine {it}": open_engine_with_option(it) for it in ("max_recoveries", "queues", "serve_queues")},
    "async engine url": lambda _store, value: asyncio.run(AsyncEngine(value).close()),
    **{
        f"async engine {it}": open_async_engine_with_option(it)
        for it in ("max_running", "suspend_after", "queues")
    },
    "client url": lambda _store, value: Client(value).close(),
    "client workflow": start_by_name,
    **{
        f"queue {it}": set_queue_with_option(it)
        for it in ("name", "concurrency", "worker_concurrency", "key_concurrency", "rate", "key_rate")
    },
    **{f"queue {it}": set_queue_with_option(it) for it in ("max_depth", "key_weights", "on_conflict")},
    **{f"rate {it}": set_rate_with_option(it) for it in ("starts", "per", "burst")},
    **{
        f"list {it}": list_with_condition(it)
        for it in ("status", "workflow", "is_parked", "parent", "id_prefix", "app_version", "queue")
    },
    **{
        f"list {it}": list_with_condition(it)
        for it in ("attributes", "created_from", "created_before", "limit", "after")
    },
    **{
        f"call {it}": call_method(it)
        for it in ("get", "show", "cancel", "resume", "pause_queue", "resume_queue")
    },
    "call set_queue": call_method("set_queue"),
    "result timeout": wait_for_result,
    **{f"call {it}": end_engine(it) for it in ("close", "drain")},
    "argument value": return_argument,
    "sleep seconds": sleep_for,
    "instance name": create_instance,
    "outbox schema": lambda _store, value: Outbox(value),
    "outbox notify": lambda _store, value: Outbox(notify=value),
    **{
        f"outbox {it}": send_with_option(it)
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
    **{f"outbox {it}": send_with_option(it, **QUEUE_OPTIONS) for it in ("key", "priority", "dedup_id")},
    **{
        f"url {it}": open_url_with_parameter(it)
        for it in ("durability", "nothing", "schema", "readers", "pooling", "listen")
    },
    **{f"url {it}": open_url_with_parameter(it) for it in ("application_name", "connect_timeout", "sslmode")},
}

#: The names in messages of refusals, where they are not the option's.
NAMES_IN_MESSAGES: dict[str, tuple[str, ...]] = {
    "client workflow": ("workflow",),
    "call get": ("workflow_id",),
    "call show": ("workflow_id",),
    "call cancel": ("workflow_id",),
    "call resume": ("workflow_id",),
    "call pause_queue": ("queue",),
    "call resume_queue": ("queue",),
    "call set_queue": ("queue",),
    "call close": ("grace",),
    "call drain": ("grace",),
    "argument value": ("argument 1",),
    "rate starts": ("starts of a rate",),
    "rate per": ("period of a rate",),
    "rate burst": ("burst of a rate",),
    "client url": ("url", "URL", "store", "scheme"),
    "async engine url": ("url",),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_hostile_value_works_or_is_refused_by_name(store: OpenStore, operation: str) -> None:
    names = NAMES_IN_MESSAGES.get(operation, (operation.split()[-1],))
    failures: list[str] = []
    for value in HOSTILE_VALUES:
        use = f"{operation}={value!r:.60}"
        try:
            OPERATIONS[operation](store, value)
        except InvalidArgument as error:
            message = str(error)
            if not any(name in message for name in names):
                failures.append(f"{use} is refused without the name: {message:.200}")
            if len(message) > MAX_MESSAGE_CHARACTERS:
                failures.append(f"{use} is refused in {len(message)} characters")
        except DOCUMENTED_ERRORS:
            pass
        except (Unavailable, WorkflowFailed) as error:
            # the wait has no time left, or the queue of a child does not exist
            if operation not in ("start wait_timeout", "child queue"):
                failures.append(f"{use} raised {error!r:.200}")
        except Error as error:
            # the value cannot be recorded
            if operation != "argument value":
                failures.append(f"{use} raised {error!r:.200}")
        except BaseException as error:
            failures.append(f"{use} raised {error!r:.200}")
    store.check_unaffected_executions()
    assert not failures, "\n".join(["", *failures])


def test_executions_with_hostile_values_are_listed_and_end(store: OpenStore) -> None:
    engine = store.engine
    for execution in engine.list(limit=10_000):
        engine.get(execution.workflow_id)
    engine.cancel_all(queue="hostile")
    engine.cancel_all(workflow=run_unaffected_step)
    store.check_unaffected_executions()
