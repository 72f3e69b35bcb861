"""A web service that places orders: `uvicorn web:app`, with fastapi and uvicorn installed.

curl -X POST 'http://127.0.0.1:8000/orders/order-7?item=tea'
curl http://127.0.0.1:8000/orders/order-7
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request

from stepfast import AsyncEngine, NotFound, WorkflowIdConflict, step, workflow


@step(retries=3)
async def charge(item: str) -> int:
    await asyncio.sleep(0.1)  # a call of some service
    return 100 * len(item)


@step
async def ship(item: str, paid: int) -> str:
    await asyncio.sleep(0.1)
    if item == "piano":
        raise ValueError("a piano is too heavy")
    return f"{item} sent, {paid} paid"


@workflow
async def order(item: str) -> str:
    return await ship(item, await charge(item))


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    async with AsyncEngine("sqlite://web.db") as engine:
        app.state.engine = engine
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{order_id}", status_code=202)
async def place(order_id: str, item: str, request: Request) -> dict[str, str]:
    engine: AsyncEngine = request.app.state.engine
    try:
        # after this call has returned, the order is durable: workers run it even after a crash
        handle = await engine.start(order.options(workflow_id=order_id), item)
    except WorkflowIdConflict as error:
        raise HTTPException(409, str(error)) from error
    return {"workflow_id": handle.workflow_id}


@app.get("/orders/{order_id}")
async def outcome(order_id: str, request: Request) -> dict[str, str]:
    """Returns the status of an order. A failed order is an answer too, and no fault of the service."""
    engine: AsyncEngine = request.app.state.engine
    try:
        record = await engine.show(order_id)
    except NotFound as error:
        raise HTTPException(404, "there is no such order") from error
    answer: dict[str, str] = {"status": record.execution.status}
    if record.execution.status == "completed":
        answer["outcome"] = record.output
    elif record.error is not None:
        answer["error"] = str(record.error)
    return answer
