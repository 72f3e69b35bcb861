"""Wrong uses of the package. The mark behind a wrong line names its errors: of mypy, then of pyright.
No test runs this file."""

# tests compare the mistakes only, not the errors that follow from them
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnusedVariable=false
# ruff: noqa: B018, F841

import asyncio
from dataclasses import dataclass
from typing import TypedDict

import stepfast
from stepfast import (
    AsyncClient,
    AsyncEngine,
    AsyncHandle,
    BatchHandle,
    Child,
    Client,
    Context,
    Engine,
    Graph,
    Handle,
    Instance,
    Outbox,
    Queue,
    RemoteWorkflow,
    Schedule,
    StartOptions,
    as_completed,
    gather,
    race,
    sleep,
    sleep_until,
    step,
    timeout,
    workflow,
)


@step
def weigh(item: str, *, is_boxed: bool = False) -> int:
    return len(item) + is_boxed


@step(process=True)
def crunch(n: int) -> list[int]:
    return [n]


@step(retries=1)
async def price(item: str, amount: float = 1.0) -> float:
    return amount * len(item)


@workflow
def total(items: list[str]) -> int:
    return sum(weigh(item) for item in items)


@workflow
async def order(item: str) -> float:
    return await price(item)


def return_item(item: str) -> str:
    return item


class Shop(Instance):
    @step
    def tag(self, amount: int) -> str:
        return f"{amount}"

    @classmethod
    @step
    def tax(cls, amount: int) -> float:
        return amount / 2

    @staticmethod
    @step
    def round_amount(amount: float) -> int:
        return round(amount)

    @workflow
    def checkout(self, amount: int) -> str:
        return self.tag("3")  # arg-type | reportArgumentType

    @workflow
    async def exchange(self, of: str) -> str:
        return self.tag.in_thread(1)  # return-value | reportReturnType

    @classmethod
    @workflow
    def opens(cls, hour: int) -> str:
        return f"{hour}"


def misuse_decorators() -> None:
    step(3)  # call-overload | reportArgumentType
    step(retries="2")  # call-overload | reportArgumentType
    step(return_item, retries=2)  # call-overload | reportCallIssue
    step(retry=2)  # call-overload | reportCallIssue
    step(retry_if=lambda error: error.errno == 2)  # attr-defined | reportAttributeAccessIssue
    step(retry_on=int)  # arg-type | reportArgumentType
    step(retry_on=KeyboardInterrupt)  # arg-type | reportArgumentType
    step(timeout="5")  # call-overload | reportArgumentType
    step(factor=2)  # call-overload | reportCallIssue
    workflow(durable_reads="no")  # call-overload | reportArgumentType
    workflow(retries=2)  # call-overload | reportCallIssue


def misuse_steps(shop: Shop) -> None:
    weigh(3)  # arg-type | reportArgumentType
    weigh()  # call-arg | reportCallIssue
    weigh("tea", True)  # call-arg | reportCallIssue
    weigh("tea", is_big=True)  # call-arg | reportCallIssue
    weigh("tea").lower()  # attr-defined | reportAttributeAccessIssue
    weigh.retries  # attr-defined | reportAttributeAccessIssue
    shop.tag("3")  # arg-type | reportArgumentType
    shop.tag(shop, 3)  # arg-type call-arg | reportCallIssue
    Shop.tag(3)  # arg-type call-arg | reportCallIssue
    Shop.tax()  # call-arg | reportCallIssue
    Shop.tax("3")  # arg-type | reportArgumentType
    shop.tax(Shop, 3)  # arg-type call-arg | reportCallIssue
    Shop.round_amount("3")  # arg-type | reportArgumentType
    shop.round_amount(shop, 3)  # arg-type call-arg | reportCallIssue
    text: str = weigh("tea")  # assignment | reportAssignmentType
    Shop.opens("9")  # arg-type | reportArgumentType


async def misuse_awaitables(shop: Shop) -> None:
    await weigh("tea")  # misc | reportGeneralTypeIssues
    price("tea")  # unused-coroutine | reportUnusedCoroutine
    amount: float = price("tea")  # assignment | reportAssignmentType
    await price("tea") + price("tea")  # operator | reportOperatorIssue reportUnusedExpression
    order("tea")  # unused-coroutine | reportUnusedCoroutine
    weigh.in_thread("tea")  # unused-coroutine | reportUnusedCoroutine
    text: str = await weigh.in_thread("tea")  # assignment | reportAssignmentType
    await weigh.in_thread(3)  # arg-type | reportArgumentType
    crunch.in_process(3)  # unused-coroutine | reportUnusedCoroutine
    text = await crunch.in_process(3)  # assignment | reportAssignmentType
    await crunch.in_process("3")  # arg-type | reportArgumentType
    await crunch(3)  # misc | reportGeneralTypeIssues
    await weigh.in_process("tea")  # attr-defined | reportAttributeAccessIssue
    await shop.tag.in_thread("3")  # arg-type | reportArgumentType
    amount = await price.in_thread("tea")  # assignment | reportAssignmentType
    sleep("1")  # arg-type | reportArgumentType
    sleep(5, 6)  # call-arg | reportCallIssue
    sleep(weeks=2)  # call-arg | reportCallIssue
    sleep_until(5)  # arg-type | reportArgumentType
    sleep(5) + 1  # operator | reportOperatorIssue reportUnusedExpression
    nothing: int = await sleep(5)  # assignment func-returns-value | reportAssignmentType
    with timeout(5):  # attr-defined | reportGeneralTypeIssues
        pass
    async with timeout("5"):  # arg-type | reportArgumentType
        pass
    await asyncio.create_task(weigh("tea"))  # arg-type | reportArgumentType


@workflow
def misuses_sync_calls() -> float:
    total.start("tea")  # arg-type | reportArgumentType
    child: Child[str] = total.start(["tea"])  # assignment | reportAssignmentType
    key: int = total.start_detached(["tea"])  # assignment | reportAssignmentType
    total.submit_batch([1])  # list-item | reportArgumentType
    total.submit_batch([], batch_id="b")  # call-arg | reportCallIssue
    pair: tuple[int, str] = gather(lambda: weigh("tea"), lambda: 2)  # assignment | reportAssignmentType
    won: int = race(lambda: weigh("tea"), lambda: 2)  # assignment | reportAssignmentType
    race(weigh("tea"), weigh("tea"))  # call-overload | reportArgumentType reportCallIssue
    stepfast.map(weigh, [1])  # arg-type unused-coroutine | reportArgumentType reportCallIssue
    numbers: list[str] = stepfast.map(weigh, ["tea"])  # arg-type assignment | reportAssignmentType
    return order("tea")  # return-value | reportReturnType


@workflow
async def misuses_async_calls() -> float:
    gather(price("tea"), price("tea"))  # unused-coroutine | reportUnusedCoroutine
    pair: tuple[int, str] = await gather(price("tea"), price("tea"))  # assignment | reportAssignmentType
    await gather(price("tea"), weigh("tea"))  # call-overload | reportArgumentType reportCallIssue
    race(price("tea"), price("tea"))  # unused-coroutine | reportUnusedCoroutine
    await race(price("tea"), weigh("tea"))  # call-overload | reportArgumentType reportCallIssue
    texts: list[str] = await stepfast.map(price, ["tea"])  # misc | reportAssignmentType
    await stepfast.map(price, [1])  # arg-type | reportArgumentType reportCallIssue
    stepfast.map(price, ["tea"], threads=3)  # call-overload | reportCallIssue
    async for task in as_completed([price("tea")]):
        text: str = await task  # assignment | reportAssignmentType
    as_completed([weigh("tea")])  # arg-type | reportArgumentType
    order.start("tea")  # unused-coroutine | reportUnusedCoroutine
    child = await order.start("tea")
    return child  # return-value | reportReturnType


def misuse_engine(engine: Engine, shop: Shop, handle: Handle[int]) -> None:
    engine.start(weigh, "tea")  # call-overload | reportArgumentType reportCallIssue
    engine.start(return_item, "tea")  # call-overload | reportArgumentType reportCallIssue
    engine.run(return_item, "tea")  # call-overload | reportArgumentType reportCallIssue
    engine.start("total", ["tea"])  # call-overload | reportArgumentType reportCallIssue
    engine.run(total, "tea")  # call-overload | reportArgumentType reportCallIssue
    engine.run(total)  # call-overload | reportCallIssue
    engine.run(total, ["tea"], ["cup"])  # call-overload | reportCallIssue
    engine.run(total, item=["tea"])  # call-overload | reportCallIssue
    engine.run(total(["tea"]))  # call-overload | reportArgumentType reportCallIssue
    text: str = engine.run(total, ["tea"])  # assignment | reportAssignmentType
    text = engine.start(total, ["tea"]).result()  # assignment | reportAssignmentType
    engine.start(total, ["tea"]).output  # attr-defined | reportAttributeAccessIssue
    engine.set_queue("mail")  # arg-type | reportArgumentType
    Queue("mail", 3)  # call-arg | reportCallIssue
    Queue("mail", on_conflict="ask")  # arg-type | reportArgumentType
    Queue("mail").name = "post"  # misc | reportAttributeAccessIssue
    Schedule("s", "total", every=60)  # arg-type | reportArgumentType
    Schedule("s", total, [], every=60, overlap="wait")  # arg-type | reportArgumentType
    Schedule("s", total, [], at="2030-01-01")  # arg-type | reportArgumentType
    Schedule("s", total, [], cron="@daily").name = "t"  # misc | reportAttributeAccessIssue
    Engine("memory:", queues=["mail"])  # list-item | reportArgumentType
    Engine("memory:", serve=["mail"])  # call-arg | reportCallIssue
    Engine("memory:", threads=3)  # call-arg | reportCallIssue
    engine.run(shop.tag, 3)  # call-overload | reportArgumentType reportCallIssue
    engine.run(shop.checkout, "3")  # call-overload | reportArgumentType reportCallIssue
    engine.run(Shop.checkout, 3)  # call-overload | reportCallIssue
    engine.run(Shop.opens, "9")  # call-overload | reportArgumentType reportCallIssue
    number: int = engine.run(order, "tea")  # assignment | reportAssignmentType
    texts: list[str] = engine.results([handle])  # list-item | reportAssignmentType
    engine.list(status=3)  # arg-type | reportArgumentType
    engine.list(status="complete")  # arg-type | reportArgumentType
    engine.list(status=["complete"])  # list-item | reportArgumentType
    handle.result(timeout="5")  # arg-type | reportArgumentType
    engine.list(workflow=weigh)  # arg-type | reportArgumentType
    engine.show(3)  # arg-type | reportArgumentType
    wrong_handle: Handle[str] = engine.get("w", total)  # arg-type | reportAssignmentType
    engine.get("w", weigh)  # call-overload | reportArgumentType reportCallIssue
    asyncio.run(engine.run(total, ["tea"]))  # arg-type | reportArgumentType


def misuse_options(engine: Engine, shop: Shop) -> None:
    named, mailed = total.options(workflow_id="w"), total.options(queue="mail")
    total.options(time=3)  # call-arg | reportCallIssue
    total.options(execution_timeout="3")  # arg-type | reportArgumentType
    total.options(queue=3)  # arg-type | reportArgumentType
    total.options(queue="mail", priority="1")  # arg-type | reportArgumentType
    total.options(queue="mail", on_full="drop")  # arg-type | reportArgumentType
    weigh.options(queue="mail")  # attr-defined | reportAttributeAccessIssue
    engine.options(queue="mail")  # attr-defined | reportAttributeAccessIssue
    engine.enqueue("mail", total, ["tea"])  # attr-defined | reportAttributeAccessIssue
    engine.start(total, ["tea"], workflow_id="w")  # arg-type call-arg | reportCallIssue
    engine.start(named, "tea")  # call-overload | reportArgumentType reportCallIssue
    engine.start(named, ["tea"], bogus=1)  # arg-type call-arg | reportCallIssue
    engine.run(named, item=["tea"])  # call-overload | reportCallIssue
    engine.run(named.options(queue="mail"), "tea")  # call-overload | reportArgumentType reportCallIssue
    engine.run(shop.checkout.options(key="k"), "3")  # call-overload | reportArgumentType reportCallIssue
    text: str = engine.run(named, ["tea"])  # assignment | reportAssignmentType
    texts: list[Handle[str]] = engine.start_many(mailed, [])  # arg-type | reportAssignmentType
    engine.start_many(weigh, [("tea",)])  # call-overload | reportArgumentType reportCallIssue
    batch: BatchHandle[str] = engine.submit_batch(mailed, [])  # arg-type | reportAssignmentType
    engine.submit_batch(weigh, [("tea",)])  # call-overload | reportArgumentType reportCallIssue
    engine.submit_batch(total, [(["tea"],)], delay=3)  # call-overload | reportCallIssue
    engine.submit_batch(total, [(["tea"],)], batch_id=3)  # call-overload | reportArgumentType reportCallIssue
    engine.submit_batch(total, ["tea"])  # arg-type list-item | reportArgumentType reportCallIssue
    mailed.start("tea")  # arg-type | reportArgumentType
    mailed("tea")  # arg-type | reportArgumentType
    key: int = named.start_detached(["tea"])  # assignment | reportAssignmentType
    options: StartOptions = {"workflow": "w"}  # typeddict-unknown-key | reportAssignmentType
    Outbox().start(None, mailed, "tea")  # call-overload | reportArgumentType reportCallIssue
    Outbox().start(None, weigh, "tea")  # call-overload | reportArgumentType reportCallIssue
    Outbox().options(queue="mail")  # attr-defined | reportAttributeAccessIssue


def misuse_remote_workflows(client: Client) -> None:
    RemoteWorkflow(3)  # arg-type | reportArgumentType
    typed = RemoteWorkflow[[str, int], None]("send")
    client.start(typed, "ann")  # arg-type | reportCallIssue
    client.start(typed.options(key="k"), "ann", "bob")  # arg-type | reportArgumentType reportCallIssue
    typed("ann", 1)  # operator | reportCallIssue
    typed.start("ann", 1)  # attr-defined | reportAttributeAccessIssue
    nothing: int = client.start(typed, "ann", 1).result()  # assignment | reportAssignmentType
    client.drain()  # attr-defined | reportAttributeAccessIssue
    client.work()  # attr-defined | reportAttributeAccessIssue
    Client("memory:", max_running=3)  # call-arg | reportCallIssue


async def misuse_async_engine(engine: AsyncEngine, client: AsyncClient) -> None:
    engine.run(order, "tea")  # unused-coroutine | reportUnusedCoroutine
    engine.start(order, "tea")  # unused-coroutine | reportUnusedCoroutine
    await engine.run(order, 3)  # call-overload | reportArgumentType reportCallIssue
    await engine.run(price, "tea")  # call-overload | reportArgumentType reportCallIssue
    await engine.start(return_item, "tea")  # call-overload | reportArgumentType reportCallIssue
    number: int = await engine.run(order, "tea")  # call-overload | reportAssignmentType
    amount: float = engine.run(order, "tea")  # assignment | reportAssignmentType
    handle = await engine.start(order, "tea")
    handle.result()  # unused-coroutine | reportUnusedCoroutine
    text: str = await handle  # assignment | reportAssignmentType
    engine.start(order.options(queue="mail"), "tea")  # unused-coroutine | reportUnusedCoroutine
    await engine.start(order.options(key="k"), 3)  # call-overload | reportArgumentType reportCallIssue
    await engine.start(order, "tea", workflow_id="w")  # call-arg | reportCallIssue
    await order.options(queue="mail").start(3)  # call-overload | reportArgumentType reportCallIssue
    engine.pause_queue("mail")  # unused-coroutine | reportUnusedCoroutine
    wrong_handle: AsyncHandle[str] = await engine.get("w", order)  # arg-type | reportAssignmentType
    await client.drain()  # attr-defined | reportAttributeAccessIssue
    await client.start("order", "tea")  # call-overload | reportArgumentType reportCallIssue
    with engine:  # attr-defined | reportGeneralTypeIssues
        pass


@dataclass
class Stats:
    count: int = 0


class Row(TypedDict):
    count: int


def misuse_context(graph: Graph, stats: Context[Stats], row: Context[Row]) -> None:
    stats.fields.count = "3"  # assignment | reportAttributeAccessIssue
    stats.fields.cuont = 3  # attr-defined | reportAttributeAccessIssue
    stats.fields.cuont  # attr-defined | reportAttributeAccessIssue
    stats.count  # attr-defined | reportAttributeAccessIssue
    stats.fields = Stats()  # misc | reportAttributeAccessIssue
    row.fields["count"] = "3"  # typeddict-item | reportGeneralTypeIssues
    row.fields["cuont"] = 3  # typeddict-unknown-key | reportGeneralTypeIssues
    other: Context[Row] = stats  # assignment | reportAssignmentType
    graph.task(after=3)  # call-overload | reportArgumentType


def make_undetected_mistakes(engine: Engine) -> None:
    # No type means "all workflows except async ones", which an Engine refuses.
    engine.start(order, "tea")
    # No type means "tuples of the arguments of this workflow", which start_many takes.
    engine.start_many(total, [(3,), ("x", 1)])
    # Types accept an option that this method refuses: the call raises the error.
    engine.start_many(total.options(workflow_id="w"), [(["tea"],)])
