"""What programs do wrong. Behind each wrong line stand the errors that mypy | pyright have to give there, and
there are no others. None of it is run."""

# only the mistakes are looked at, not what follows from them
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnusedVariable=false
# ruff: noqa: B018, F841

import asyncio

import stepfast
from stepfast import (
    AsyncEngine,
    Child,
    Engine,
    Handle,
    Instance,
    Queue,
    as_completed,
    gather,
    sleep,
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


def plain(item: str) -> str:
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
    def rounded(amount: float) -> int:
        return round(amount)

    @workflow
    def checkout(self, amount: int) -> str:
        return self.tag("3")  # arg-type | reportArgumentType

    @workflow
    async def exchange(self, of: str) -> str:
        return self.tag.in_thread(1)  # return-value | reportReturnType

    @classmethod
    @workflow
    def opening(cls, hour: int) -> str:
        return f"{hour}"


def decorates() -> None:
    step(3)  # call-overload | reportArgumentType
    step(retries="2")  # call-overload | reportArgumentType
    step(plain, retries=2)  # call-overload | reportCallIssue
    step(retry=2)  # call-overload | reportCallIssue
    step(retry_if=lambda error: error.errno == 2)  # attr-defined | reportAttributeAccessIssue
    workflow(eager="no")  # call-overload | reportArgumentType
    workflow(retries=2)  # call-overload | reportCallIssue


def calls_steps(shop: Shop) -> None:
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
    Shop.rounded("3")  # arg-type | reportArgumentType
    shop.rounded(shop, 3)  # arg-type call-arg | reportCallIssue
    text: str = weigh("tea")  # assignment | reportAssignmentType
    Shop.opening("9")  # arg-type | reportArgumentType


async def awaits(shop: Shop) -> None:
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
    sleep(5) + 1  # operator | reportOperatorIssue reportUnusedExpression
    nothing: int = await sleep(5)  # assignment func-returns-value | reportAssignmentType
    with timeout(5):  # attr-defined | reportGeneralTypeIssues
        pass
    async with timeout("5"):  # arg-type | reportArgumentType
        pass
    await asyncio.create_task(weigh("tea"))  # arg-type | reportArgumentType


@workflow
def sync_calls() -> float:
    total.start("tea")  # arg-type | reportArgumentType
    child: Child[str] = total.start(["tea"])  # assignment | reportAssignmentType
    key: int = total.start_detached(["tea"])  # assignment | reportAssignmentType
    pair: tuple[int, str] = gather(lambda: weigh("tea"), lambda: 2)  # assignment | reportAssignmentType
    stepfast.map(weigh, [1])  # arg-type unused-coroutine | reportArgumentType reportCallIssue
    numbers: list[str] = stepfast.map(weigh, ["tea"])  # arg-type assignment | reportAssignmentType
    return order("tea")  # return-value | reportReturnType


@workflow
async def async_calls() -> float:
    gather(price("tea"), price("tea"))  # unused-coroutine | reportUnusedCoroutine
    pair: tuple[int, str] = await gather(price("tea"), price("tea"))  # assignment | reportAssignmentType
    await gather(price("tea"), weigh("tea"))  # call-overload | reportArgumentType reportCallIssue
    texts: list[str] = await stepfast.map(price, ["tea"])  # misc | reportAssignmentType
    await stepfast.map(price, [1])  # arg-type | reportArgumentType reportCallIssue
    stepfast.map(price, ["tea"], threads=3)  # call-overload | reportCallIssue
    async for task in as_completed([price("tea")]):
        text: str = await task  # assignment | reportAssignmentType
    as_completed([weigh("tea")])  # arg-type | reportArgumentType
    order.start("tea")  # unused-coroutine | reportUnusedCoroutine
    child = await order.start("tea")
    return child  # return-value | reportReturnType


def uses_engine(engine: Engine, shop: Shop, handle: Handle[int]) -> None:
    engine.start(weigh, "tea")  # call-overload | reportArgumentType reportCallIssue
    engine.start(plain, "tea")  # call-overload | reportArgumentType reportCallIssue
    engine.run(plain, "tea")  # call-overload | reportArgumentType reportCallIssue
    engine.run(total, "tea")  # call-overload | reportArgumentType
    engine.run(total)  # call-overload | reportCallIssue
    engine.run(total, ["tea"], ["cup"])  # call-overload | reportCallIssue
    engine.run(total, item=["tea"])  # call-overload | reportCallIssue
    engine.run(total(["tea"]))  # call-overload | reportArgumentType reportCallIssue
    text: str = engine.run(total, ["tea"])  # assignment | reportAssignmentType
    text = engine.start(total, ["tea"]).result()  # assignment | reportAssignmentType
    engine.start(total, ["tea"]).output  # attr-defined | reportAttributeAccessIssue
    engine.options(time=3)  # call-arg | reportCallIssue
    engine.options(timeout="3")  # arg-type | reportArgumentType
    engine.options(workflow_id="w").start(total, "tea")  # arg-type | reportArgumentType
    engine.options(workflow_id="w").start(weigh, "tea")  # arg-type | reportArgumentType reportCallIssue
    engine.options(queue=3)  # arg-type | reportArgumentType
    engine.options(queue="mail", priority="1")  # arg-type | reportArgumentType
    engine.enqueue("mail", total, "tea")  # arg-type | reportArgumentType
    engine.enqueue(total, ["tea"])  # arg-type | reportArgumentType reportCallIssue
    engine.enqueue("mail", weigh, "tea")  # arg-type | reportArgumentType reportCallIssue
    engine.set_queue("mail")  # arg-type | reportArgumentType
    Queue("mail", 3)  # call-arg | reportCallIssue
    Queue("mail", on_conflict="ask")  # arg-type | reportArgumentType
    Queue("mail").name = "post"  # misc | reportAttributeAccessIssue
    Engine("memory:", queues=["mail"])  # list-item | reportArgumentType
    engine.run(shop.tag, 3)  # call-overload | reportArgumentType reportCallIssue
    engine.run(shop.checkout, "3")  # call-overload | reportArgumentType
    engine.run(Shop.checkout, 3)  # call-overload | reportCallIssue
    engine.run(Shop.opening, "9")  # call-overload | reportArgumentType
    number: int = engine.run(order, "tea")  # assignment | reportAssignmentType
    texts: list[str] = engine.results([handle])  # list-item | reportAssignmentType
    engine.list(status=3)  # arg-type | reportArgumentType
    engine.list(workflow=weigh)  # arg-type | reportArgumentType
    engine.show(3)  # arg-type | reportArgumentType
    Engine("memory:", thread=3)  # call-arg | reportCallIssue
    asyncio.run(engine.run(total, ["tea"]))  # arg-type | reportArgumentType


async def uses_async_engine(engine: AsyncEngine) -> None:
    engine.run(order, "tea")  # unused-coroutine | reportUnusedCoroutine
    engine.start(order, "tea")  # unused-coroutine | reportUnusedCoroutine
    await engine.run(order, 3)  # call-overload | reportArgumentType reportCallIssue
    await engine.run(price, "tea")  # call-overload | reportArgumentType reportCallIssue
    await engine.start(plain, "tea")  # call-overload | reportArgumentType reportCallIssue
    number: int = await engine.run(order, "tea")  # call-overload | reportAssignmentType
    amount: float = engine.run(order, "tea")  # assignment | reportAssignmentType
    handle = await engine.start(order, "tea")
    handle.result()  # unused-coroutine | reportUnusedCoroutine
    text: str = await handle  # assignment | reportAssignmentType
    engine.enqueue("mail", order, "tea")  # unused-coroutine | reportUnusedCoroutine
    await engine.enqueue("mail", order, 3)  # call-overload | reportArgumentType reportCallIssue
    engine.pause_queue("mail")  # unused-coroutine | reportUnusedCoroutine
    await engine.options(timeout=3).run(order, ["tea"])  # call-overload | reportArgumentType reportCallIssue
    with engine:  # attr-defined | reportGeneralTypeIssues
        pass


def is_not_told(engine: Engine) -> None:
    # Of arguments beside a workflow_id, unlike with `options`: a signature has no place for it between the
    # `*args` and the `**kwargs` of a ParamSpec.
    engine.start(total, "tea", workflow_id="w")
    # That an Engine refuses what is async, as long as nobody uses the output: no type says "all but these".
    engine.start(order, "tea")
