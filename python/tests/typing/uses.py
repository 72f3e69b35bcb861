"""Correct uses of the package, which type checkers accept. The program needs the URL of a store, and runs."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal, Self, TypedDict, TypeVar, assert_type

import stepfast
from stepfast import (
    AsyncBatchHandle,
    AsyncChild,
    AsyncChildBatch,
    AsyncClient,
    AsyncEngine,
    AsyncHandle,
    AsyncOutbox,
    BatchCounts,
    BatchHandle,
    BatchOptions,
    BoundProcessStep,
    BoundStep,
    BoundWorkflow,
    BulkResult,
    Child,
    ChildBatch,
    ChildBatchOptions,
    Client,
    ConfiguredWorkflow,
    Context,
    Current,
    Engine,
    Execution,
    Graph,
    Handle,
    Instance,
    ItemResult,
    OnDuplicate,
    OnFull,
    Outbox,
    ProcessStep,
    Queue,
    QueueInfo,
    Record,
    RemoteWorkflow,
    RetryOn,
    Schedule,
    ScheduleInfo,
    Startable,
    StartOptions,
    Status,
    StatusText,
    WorkerOverview,
    Workflow,
    as_completed,
    current,
    current_or_none,
    gather,
    race,
    sleep,
    sleep_until,
    step,
    timeout,
    wait_for,
    wait_until,
    workflow,
)
from stepfast.values import decode, encode, register

T = TypeVar("T")

TRANSIENT_ERRORS: RetryOn = (ConnectionError, TimeoutError)


@step
def weigh(item: str, *, is_boxed: bool = False) -> int:
    return len(item) + is_boxed


@step(
    name="price",
    retries=2,
    backoff=timedelta(milliseconds=10),
    backoff_factor=2,
    timeout=timedelta(minutes=1),
    retry_on=TRANSIENT_ERRORS,
    retry_if=lambda error: isinstance(error, OSError),
)
async def price(item: str, amount: float = 1.0) -> float:
    return amount * len(item)


@step(process=True, timeout=600, retries=1)
def crunch(n: int, *, is_fast: bool = False) -> list[int]:
    return [n, is_fast]


@dataclass
class Press:
    factor: int

    @step(process=True)
    def press(self, amount: int) -> list[int]:
        return [self.factor] * amount


@step(timeout=60)
async def label(item: str) -> str:
    return f"[{item}]"


@step
def first(items: list[T]) -> T:
    return items[0]


@workflow
def total(items: list[str]) -> int:
    return sum(weigh(item) for item in items)


@workflow(name="order", durable_reads=True)
async def order(item: str, *, amount: float = 1.0) -> float:
    return await price(item, amount)


@workflow
def parcel(item: str, amount: int = 1) -> str:
    assert_type(weigh(item, is_boxed=True), int)
    assert_type(first([item]), str)
    assert_type(total([item]), int)
    child = total.start([item])
    assert_type(child, Child[int])
    limited = total.options(execution_timeout=60)
    assert_type(limited([item]), int)
    assert_type(limited.start([item]), Child[int])
    assert_type(limited.options(workflow_id=f"total of {item}").start_detached([item]), str)
    assert_type(child.result(), int)
    assert_type(total.start_detached([item]), str)
    batch = total.submit_batch([([item],)], priority=1, queue="mail")
    assert_type(batch, ChildBatch[int])
    assert_type((batch.wait(), batch.results()), tuple[BatchCounts, list[ItemResult[int]]])
    child_options: ChildBatchOptions = {"attributes": {"item": item}}
    assert_type(total.options(queue="mail").submit_batch([], **child_options), ChildBatch[int])

    sleep(0.001)
    sleep(minutes=0.00001)
    weight: int = wait_until(partial(weigh, item), every=0.001, timeout=timedelta(seconds=1))
    assert_type(wait_until(lambda: True, every=1), Any)
    assert weight == len(item)
    assert_type(gather(lambda: weigh(item), lambda: label.name), tuple[int, str])
    assert_type(gather(lambda: 1, lambda: "b", lambda: 2.0), tuple[int, str, float])
    assert_type(gather(lambda: 1, lambda: "b", lambda: 2.0, lambda: b"d"), tuple[int, str, float, bytes])
    assert_type(gather(*[lambda: weigh(item) for _ in range(2)]), tuple[int, ...])
    won = race(lambda: weigh(item), lambda: label.name)
    assert_type(won, tuple[Literal[0], int] | tuple[Literal[1], str])
    if won[0] == 0:
        assert_type(won[1], int)
    _, output = race(lambda: 1, lambda: "b", lambda: 2.0, lambda: b"d")
    assert_type(output, int | str | float | bytes)
    assert_type(race(*[lambda: weigh(item) for _ in range(2)]), tuple[int, int])
    assert_type(stepfast.map(weigh, [item, item], concurrency=2), list[int])
    assert_type(stepfast.map(lambda n: n / 2, range(3)), list[float])
    crunching: ProcessStep[..., list[int]] = crunch
    assert_type(crunch(3, is_fast=True), list[int])
    assert_type(stepfast.map(crunch, range(3)), list[list[int]])
    assert_type(crunching(3), list[int])
    pressing: BoundProcessStep[[int], list[int]] = Press(2).press
    assert_type(pressing(3), list[int])
    assert_type(Press(2).press(3), list[int])
    assert_type(stepfast.map(total, [[item]]), list[int])

    now = current()
    assert_type(now, Current)
    assert_type(now.attempt, int | None)
    assert_type(current_or_none(), Current | None)
    return f"{amount} {item} {now.workflow_id}"


@workflow
async def cart(items: list[str]) -> dict[str, float]:
    assert_type(await price(items[0], amount=2.0), float)
    crunching = crunch.in_process(3, is_fast=True)
    assert_type(await assert_type(crunching, Coroutine[object, None, list[int]]), list[int])
    assert_type(await Press(2).press.in_process(3), list[int])
    assert_type(await gather(crunch.in_process(3), price("a")), tuple[list[int], float])
    weighing = weigh.in_thread(items[0], is_boxed=True)
    assert_type(await assert_type(weighing, Coroutine[object, None, int]), int)
    assert_type(await asyncio.create_task(weigh.in_thread(items[0])), int)
    assert_type(await weigh.in_thread(items[0]), int)
    assert_type(await order(items[0], amount=3.0), float)
    assert_type(await total.in_thread(items), int)
    child = await order.start(items[0])
    assert_type(child, AsyncChild[float])
    assert_type(await child, float)
    assert_type(await child.result(), float)
    assert_type(await order.start_detached(items[0]), str)
    batch = await order.submit_batch((item,) for item in items)
    assert_type(batch, AsyncChildBatch[float])
    assert_type((await batch.wait(), batch.item_id(0)), tuple[BatchCounts, str])
    assert_type(await batch.results(), list[ItemResult[float]])
    limited = order.options(execution_timeout=60)
    assert_type(await limited(items[0]), float)
    assert_type(await limited.start(items[0]), AsyncChild[float])
    assert_type(await total.options(run_timeout=60).in_thread(items), int)
    assert_type(await limited.options(workflow_id=f"order of {items[0]}").start_detached(items[0]), str)

    await sleep(timedelta(milliseconds=1))
    assert_type(sleep_until(datetime.now(UTC)), Awaitable[None])
    pause = sleep(0.001)
    assert_type(pause, Awaitable[None])
    await pause
    assert_type(await wait_until(partial(price, items[0]), every=60), float)
    assert await wait_until(partial(weigh, items[0]), every=60) == len(items[0])
    async with timeout(60) as limit:
        await sleep(0.001)
    assert_type(limit.expired(), bool)
    assert_type(await wait_for(price(items[0]), 60), float)
    assert_type(await wait_for(sleep(0.001), 60), None)

    assert_type(await gather(price(items[0]), label(items[0])), tuple[float, str])
    assert_type(await gather(sleep(0), price("a"), label("b")), tuple[None, float, str])
    assert_type(
        await gather(price("a"), label("b"), weigh.in_thread("c"), order("d")),
        tuple[float, str, int, float],
    )
    assert_type(await gather(*[price(item) for item in items]), tuple[float, ...])
    assert_type(await asyncio.gather(price("a"), label("b")), tuple[float, str])
    _, output = await race(price("a"), label("b"), sleep(1))
    assert_type(output, float | str | None)
    assert_type(await race(*[price(item) for item in items]), tuple[int, float])
    assert_type(await stepfast.map(label, items, concurrency=2), list[str])
    assert_type(await stepfast.map(order, items), list[float])
    lambda_prices: list[float] = await stepfast.map(lambda item: price(item), items)
    assert len(lambda_prices) == len(items)
    prices: dict[str, float] = {}
    async for task in as_completed([price(item) for item in items]):
        assert_type(await task, float)
    async with asyncio.TaskGroup() as group:
        tasks = {item: group.create_task(price(item)) for item in items}
    for item, done in tasks.items():
        prices[item] = done.result()
    return prices


class Shop(Instance):
    def __init__(self, name: str, currency: str) -> None:
        super().__init__(name)
        self.currency = currency

    @step
    def tag(self, amount: int) -> str:
        return f"{amount} {self.currency}"

    @step(retries=1)
    async def rate(self, of: str) -> float:
        return len(of) / 2

    @step
    def same(self) -> Self:
        return self

    @classmethod
    @step
    def tax(cls, amount: int, *, rate: float = 0.5) -> float:
        return amount * rate

    @classmethod
    @step
    async def codes(cls, amount: int) -> list[int]:
        return [amount]

    @staticmethod
    @step
    def round_amount(amount: float) -> int:
        return round(amount)

    @staticmethod
    @step
    def show_value(value: object) -> str:
        return str(value)

    @workflow
    def checkout(self, amount: float) -> str:
        tag: BoundStep[[int], str] = self.tag
        assert_type(tag(1), str)
        assert_type(self.round_amount(amount), int)
        assert_type(self.tax(3, rate=0.25), float)
        return self.tag(self.round_amount(amount))

    @workflow
    async def exchange(self, of: str) -> float:
        assert_type(await self.tag.in_thread(1), str)
        assert_type(await self.codes(1), list[int])
        return await self.rate(of)

    @workflow
    def calls_all_kinds(self) -> None:
        checkout: BoundWorkflow[[float], str] = self.checkout
        assert_type(checkout(2.5), str)
        assert_type(self.checkout(2.5), str)
        assert_type(self.checkout.start(2.5).result(), str)
        assert_type(self.checkout.start_detached(2.5), str)
        assert_type(Shop.tag(self, 1), str)
        assert_type(Shop.tax(3), float)
        assert_type(Shop.round_amount(2.5), int)
        Shop.show_value(self)
        self.same()

    @classmethod
    @workflow
    def opens(cls, hour: int) -> str:
        assert_type(cls.tax(hour), float)
        return f"{cls.__name__} {hour}"

    @staticmethod
    @workflow
    def closes(hour: int) -> int:
        return hour


class Market(Shop):
    @workflow
    def stalls(self) -> str:
        return self.tag(1) + self.checkout(1)


@register
@dataclass
class Crate:
    items: list[str]

    @step
    def count(self) -> int:
        return len(self.items)

    @workflow
    def unpack(self) -> int:
        return self.count()


@dataclass
class Stats:
    count: int = 0
    words: list[str] = field(default_factory=list[str])


class Row(TypedDict, total=False):
    count: int


stats_graph = Graph("stats")


@stats_graph.task
def read_words(context: Context[Stats], text: str) -> None:
    assert_type(context.fields, Stats)
    assert_type(context.fields.count, int)
    context.fields.words = text.split()
    context.fields.count += len(context.fields.words)


@stats_graph.task(after=read_words)
def log_count(context: Context) -> None:
    assert_type(context, Context[Any])
    assert_type(context["count"], Any)
    context["count"] = 2 * context["count"]
    print(context.to_dict())


@stats_graph.task(after=[log_count, "read_words"])
def check_count(context: Context[Stats]) -> int:
    log_count(context)
    return context.fields.count


row_graph = Graph("row")


@row_graph.task
def write_row(context: Context[Row]) -> None:
    assert_type(context.fields.get("count"), int | None)
    context.fields["count"] = 3
    count: int = context.fields["count"]
    assert count == 3


def use_graphs(url: str) -> None:
    """Runs graphs whose context has a class, and calls a task with such a context."""
    context = Context[Stats]({"count": 1})
    read_words(context, "to be")
    assert_type(context.fields.count, int)
    assert context.fields.count == 3
    with Engine(url) as engine:
        assert_type(engine.run(stats_graph, text="to be"), Any)
        assert engine.run(row_graph) == {"count": 3}


def use_engine(url: str) -> None:
    shop = Shop("eu", "EUR")
    mail = Queue("mail", concurrency=2, worker_concurrency=2, key_concurrency=1, on_conflict="keep")
    with Engine(
        url, max_running=100, max_threads=8, suspend_after=1.0, queues=[mail], serve_queues=["default", mail]
    ) as engine:
        assert_type(engine.run(total, ["tea"]), int)
        assert_type(engine.run(parcel.options(workflow_id="p"), "tea", amount=2), str)
        handle = engine.start(parcel, "tea", 2)
        assert_type(handle, Handle[str])
        assert_type(handle.result(), str)
        assert_type(handle.result(timeout=60), str)
        assert_type(handle.result(timeout=timedelta(minutes=1)), str)
        assert_type(handle.status(), Status)
        assert_type(handle.cancel(), bool)
        assert_type(engine.start(total, ["tea"]).result(), int)
        assert_type(engine.start(total, items=["tea"]), Handle[int])

        limited = total.options(workflow_id="t", execution_timeout=60, wait_timeout=timedelta(minutes=1))
        configured: ConfiguredWorkflow[[list[str]], int] = limited
        assert configured is limited
        startable: Startable[[list[str]], int] = limited
        assert_type(engine.start(startable, ["tea"]), Handle[int])
        assert_type(engine.start(limited, ["tea"]), Handle[int])
        assert_type(engine.start_many(total.options(queue=mail), [(["tea"],)]), list[Handle[int]])
        batch = engine.submit_batch(total, [(["tea"],)], batch_id="bread", queue=mail, attributes={"a": "b"})
        assert_type(batch, BatchHandle[int])
        assert_type(batch.counts(), BatchCounts)
        assert_type(batch.wait(timedelta(minutes=1)).ended, int)
        assert_type(batch.results(), Iterator[ItemResult[int]])
        assert_type([item.result() for item in batch.failures()], list[int])
        assert_type(next(batch.results()).exception(), BaseException | None)
        assert_type((batch.status(), batch.cancel(), batch.item_id(3)), tuple[Status, bool, str])
        batch_options: BatchOptions = {"batch_id": "none", "priority": 3}
        assert_type(engine.submit_batch(total.options(queue=mail), [], **batch_options), BatchHandle[int])
        assert_type(engine.get_batch("bread"), BatchHandle[Any])
        assert_type(engine.get_batch("bread", total), BatchHandle[int])
        assert_type(engine.run(limited, ["tea"]), int)
        assert_type(engine.run(total, items=["tea"]), int)

        assert_type(engine.start(total.options(queue=mail), ["tea"]), Handle[int])
        assert_type(engine.start(shop.checkout.options(queue="mail"), amount=2.5).result(), str)
        assert_type(engine.run(total.options(queue=mail, key="eu", priority=-1), ["tea"]), int)
        named = total.options(queue=mail).options(key="eu")
        assert_type(engine.run(named, items=["tea"]), int)
        assert_type(engine.run(RemoteWorkflow("total"), ["tea"]), Any)
        remote = RemoteWorkflow[[list[str]], int]("total")
        assert_type(remote.options(queue=mail), RemoteWorkflow[[list[str]], int])
        assert_type(engine.run(remote.options(queue=mail), ["tea"]), int)
        assert_type(engine.set_queue(Queue("post")), QueueInfo)
        assert_type(engine.pause_queue("post").is_paused, bool)
        assert_type(engine.resume_queue(mail).concurrency, int | None)
        assert_type(engine.queues(), list[QueueInfo])
        nightly = Schedule("nightly", total.options(queue=mail), ["tea"], cron="0 2 * * *", overlap="allow")
        engine.set_schedule(nightly)
        engine.set_schedule(Schedule("remote", RemoteWorkflow("none"), every=60, kwargs={"items": []}))
        engine.set_schedule(Schedule("remote", remote, ["tea"], every=timedelta(days=1), catch_up="all"))
        engine.set_schedule(Schedule("method", shop.checkout, 2.5, cron="@yearly", on_conflict="keep"))
        assert_type(engine.schedule("nightly"), ScheduleInfo)
        assert_type(engine.schedule("nightly").next, datetime | None)
        assert_type(engine.schedules(), list[ScheduleInfo])
        assert_type(engine.trigger_schedule("nightly"), Handle[Any])
        now = datetime.now(UTC)
        assert_type(engine.backfill_schedule("nightly", now - timedelta(days=2), now), int)
        engine.pause_schedule("nightly", "enough")

        assert_type(engine.run(shop.checkout, 2.5), str)
        assert_type(engine.run(Market("uk", "GBP").stalls), str)
        assert_type(engine.start(shop.checkout.options(workflow_id="c"), amount=2.5).result(), str)
        assert_type(engine.run(shop.calls_all_kinds), None)
        assert_type(engine.run(Shop.opens, 9), str)
        assert_type(engine.run(Shop.closes, 18), int)
        assert_type(engine.run(Crate(["tea"]).unpack), int)

        handles = [engine.start(total, [item]) for item in ("tea", "bread")]
        assert_type(engine.results(handles), list[int])
        assert_type(engine.results(handles, return_exceptions=True), list[int | BaseException])
        mixed_handles: list[Handle[int] | Handle[str]] = [*handles, handle]
        outputs: list[int | str] = engine.results(mixed_handles)
        assert len(outputs) == 3

        assert_type(engine.get("p"), Handle[Any])
        assert_type(engine.get("p", parcel), Handle[str])
        assert_type(engine.get("c", shop.checkout), Handle[str])
        assert_type(engine.workers(), WorkerOverview)
        assert_type(engine.cancel_all(parent="p"), BulkResult)
        record = engine.show("p")
        assert_type(record, Record)
        assert_type(record.checkpoints[0].duration, timedelta)
        assert_type(engine.count(status=Status.FAILED), int)
        assert_type(engine.list(status=[Status.FAILED, "completed"])[0].status, Status)
        executions = engine.list(status=["completed", "failed"], workflow=total, limit=10)
        assert_type(executions, list[Execution])
        assert_type(executions[0].created_at, datetime)
        assert_type((executions[0].queue, executions[0].priority), tuple[str | None, int])
        assert_type(
            engine.list(workflow=shop.checkout, created_from=executions[0].created_at), list[Execution]
        )
        assert_type(engine.count(workflow="order", is_parked=False), int)


async def use_async_engine(url: str) -> None:
    shop = Shop("eu", "EUR")
    async with AsyncEngine(url) as engine:
        assert_type(await engine.run(order, "tea", amount=2.0), float)
        assert_type(await engine.run(total, ["tea"]), int)
        assert_type(await engine.run(order.options(workflow_id="ao"), "tea"), float)
        assert_type(await engine.run(total.options(workflow_id="at"), ["tea"]), int)
        handle = await engine.start(cart, ["tea", "bread"])
        assert_type(handle, AsyncHandle[dict[str, float]])
        assert_type(await handle, dict[str, float])
        assert_type(await handle.result(), dict[str, float])
        assert_type(await handle.result(timeout=60), dict[str, float])
        assert_type(await handle.status(), Status)
        assert_type(await engine.start(parcel, "tea"), AsyncHandle[str])
        assert_type(await engine.start(order.options(workflow_id="ap"), "tea"), AsyncHandle[float])
        assert_type(await engine.start(total.options(workflow_id="au"), ["tea"]), AsyncHandle[int])
        assert_type(await asyncio.create_task(engine.run(order, "tea")), float)
        await engine.set_schedule(Schedule("async", order, "tea", every=3600, jitter=timedelta(minutes=1)))
        assert_type(await engine.trigger_schedule("async"), AsyncHandle[Any])
        assert_type((await engine.schedules())[0].skips, tuple[datetime, ...])
        assert_type(await engine.schedule("async"), ScheduleInfo)

        options: StartOptions = {"execution_timeout": 60}
        assert_type(await engine.start(order.options(**options), "tea"), AsyncHandle[float])
        assert_type(await engine.start(total.options(**options), ["tea"]), AsyncHandle[int])
        assert_type(await engine.run(order.options(**options), "tea"), float)
        assert_type(await engine.run(total.options(**options), ["tea"]), int)

        assert_type((await engine.set_queue(Queue("letters"))).version, int)
        assert_type(await engine.start(order.options(queue="letters"), "tea"), AsyncHandle[float])
        assert_type(await (await engine.start(total.options(queue="letters"), ["tea"])), int)
        assert_type(await engine.run(order.options(queue="letters", key="eu"), "tea"), float)
        assert_type(await engine.pause_queue("letters"), QueueInfo)
        assert_type(await engine.resume_queue(Queue("letters")), QueueInfo)
        assert_type(await engine.queues(), list[QueueInfo])

        assert_type(await engine.run(shop.exchange, "USD"), float)
        assert_type(await engine.run(shop.checkout, 2.5), str)
        assert_type(await engine.run(Shop.opens, 9), str)

        handles = [await engine.start(order, item) for item in ("tea", "bread")]
        assert_type(await engine.results(handles), list[float])
        assert_type(await engine.results(handles, return_exceptions=True), list[float | BaseException])
        assert_type(await engine.show("ao"), Record)
        assert_type(await engine.get("ao"), AsyncHandle[Any])
        assert_type(await engine.get("ao", order), AsyncHandle[float])
        started_handles = await engine.start_many(order.options(queue="letters"), [("tea",)])
        assert_type(started_handles, list[AsyncHandle[float]])

        async def inputs() -> AsyncIterator[tuple[str]]:
            yield ("tea",)

        assert_type(await engine.submit_batch(total, [(["tea"],)]), AsyncBatchHandle[int])
        batch = await engine.submit_batch(order, inputs(), batch_id="batch-ao")
        assert_type(batch, AsyncBatchHandle[float])
        assert_type((await batch.wait(), await batch.counts()), tuple[BatchCounts, BatchCounts])
        assert_type(batch.results(), AsyncIterator[ItemResult[float]])
        assert_type([item.result() async for item in batch.failures()], list[float])
        assert_type(await engine.get_batch("batch-ao"), AsyncBatchHandle[Any])
        assert_type(await engine.get_batch("batch-ao", order), AsyncBatchHandle[float])
        assert_type(await engine.list(workflow=order), list[Execution])
        assert_type(await engine.cancel("ao"), bool)


def use_client(url: str) -> None:
    """Uses a client with workflows, and with names of workflows."""
    with Client(url) as client:
        assert_type(client.start(total, ["tea"]), Handle[int])
        assert_type(client.start(RemoteWorkflow("total"), ["tea"]), Handle[Any])
        assert_type(client.start(total.options(execution_timeout=60), ["tea"]), Handle[int])
        assert_type(
            client.start(RemoteWorkflow("total").options(queue="letters", key="ann"), ["tea"]), Handle[Any]
        )
        assert_type(
            client.start_many(RemoteWorkflow("total").options(execution_timeout=60), [(["tea"],)]),
            list[Handle[Any]],
        )
        # without assert_type, which gives pyright the types that it cannot infer
        started_handles = client.start_many(RemoteWorkflow("total"), [(["tea"],)])
        print(started_handles[0].workflow_id)
        handle = client.get("o", RemoteWorkflow("order"))
        print(handle.workflow_id)
        assert_type(client.get("o", RemoteWorkflow[[str], float]("order")), Handle[float])
        # an async workflow, which workers with an event loop run
        assert_type(client.submit_batch(order, [("tea",)]), BatchHandle[float])
        remote_batch = client.submit_batch(RemoteWorkflow("total"), [(["tea"],)])
        print(remote_batch.batch_id)
        assert_type(client.get_batch("b", RemoteWorkflow[[str], float]("order")), BatchHandle[float])
        assert_type(client.start_many(total.options(execution_timeout=60), [(["tea"],)]), list[Handle[int]])
        # a client starts async workflows for workers with an event loop
        assert_type(client.run(order, "tea"), float)
        assert_type(client.get("o", order).result(), float)
    engine_as_client: Client = Engine(url, queues=[Queue("letters")])
    engine_as_client.close()


async def use_async_client(url: str) -> None:
    """Uses an async client with workflows, and with names of workflows."""
    async with AsyncClient(url) as client:
        assert_type(await client.start(total.options(execution_timeout=60), ["tea"]), AsyncHandle[int])
        assert_type(
            await client.start(RemoteWorkflow("total").options(execution_timeout=60), ["tea"]),
            AsyncHandle[Any],
        )
        assert_type(await client.start_many(RemoteWorkflow("total"), [(["tea"],)]), list[AsyncHandle[Any]])
        started_handles = await client.start_many(RemoteWorkflow("total"), [(["tea"],)])
        print(started_handles[0].workflow_id)
        handle = await client.get("o", RemoteWorkflow("order"))
        print(handle.workflow_id)
        assert_type(await client.get("o", RemoteWorkflow[[str], float]("order")), AsyncHandle[float])


def use_outbox(connection: object) -> None:
    """Starts workflows, and names of workflows, in a transaction."""
    outbox = Outbox()
    assert_type(outbox.start(connection, total, ["tea"]), str)
    assert_type(outbox.start(connection, order.options(queue="letters"), "tea", amount=2.0), str)
    workflow_id = outbox.start(connection, RemoteWorkflow("total"), ["tea"])
    print(workflow_id)
    assert_type(outbox.start(connection, RemoteWorkflow[[str], None]("send"), "ann"), str)


async def use_async_outbox(connection: object) -> None:
    """Starts workflows, and names of workflows, in a transaction of a connection whose calls are awaited."""
    outbox = AsyncOutbox()
    assert_type(await outbox.start(connection, total, ["tea"]), str)
    workflow_id = await outbox.start(connection, RemoteWorkflow("total"), ["tea"])
    print(workflow_id)


def start_total(
    client: Client, items: list[str], *, on_duplicate: OnDuplicate = "reject", on_full: OnFull = "reject"
) -> Handle[int]:
    """A function of a program that passes options on."""
    options = total.options(queue="letters", dedup_id="t", on_duplicate=on_duplicate, on_full=on_full)
    return client.start(options, items)


def count_executions(client: Client, status: StatusText) -> int:
    """A function of a program that passes a status on."""
    return client.count(status=status)


def use_outside_of_workflows() -> None:
    """Calls steps and workflows outside of workflows, where they are plain functions."""
    assert_type(weigh("tea"), int)
    assert_type(asyncio.run(order("tea")), float)
    assert_type(Shop.round_amount(2.5), int)
    assert_type([*map(weigh, ["tea"])], list[int])
    assert_type(parcel.__name__, str)
    # the type of the output is covariant
    float_workflow: Workflow[[list[str]], float] = total
    assert float_workflow is total
    assert_type(decode(encode(["tea"])), Any)
    assert current_or_none() is None


if __name__ == "__main__":
    use_outside_of_workflows()
    use_engine(sys.argv[1])
    use_graphs(sys.argv[1])
    asyncio.run(use_async_engine(sys.argv[1]))
