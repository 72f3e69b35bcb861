"""Web services for test_environments.py: one with an AsyncEngine, one with an Engine."""

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator

from fastapi import FastAPI

from stepfast import AsyncEngine, Engine, step, workflow

URL = os.environ["URL"]


@step
async def return_number(n: int) -> int:
    await asyncio.sleep(0)
    return n


@workflow
async def returns_numbers(n: int) -> list[int]:
    return await asyncio.gather(*[return_number(i) for i in range(n)])


@step
def check_thread(n: int) -> list[object]:
    return [n, threading.current_thread() is threading.main_thread()]


@workflow
def checks_threads(n: int) -> list[list[object]]:
    return [check_thread(i) for i in range(n)]


is_released = asyncio.Event()


@step
async def wait_for_release() -> int:
    await is_released.wait()
    return os.getpid()


@workflow
async def calls_waiting_step() -> int:
    return await wait_for_release()


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with AsyncEngine(URL) as engine:
        app.state.engine = engine
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/pid")
async def pid() -> int:
    return os.getpid()


@app.post("/run/{n}")
async def run(n: int) -> list[int]:
    return await app.state.engine.run(returns_numbers, n)


@app.post("/start/{n}")
async def start(n: int) -> str:
    return (await app.state.engine.start(returns_numbers, n)).workflow_id


@app.get("/result/{workflow_id}")
async def result(workflow_id: str) -> list[int]:
    return await (await app.state.engine.get(workflow_id))


@app.post("/run-in-threads/{n}")
async def run_in_threads(n: int) -> list[list[object]]:
    return await app.state.engine.run(checks_threads, n)


@app.post("/begin/{workflow_id}")
async def begin(workflow_id: str) -> str:
    handle = await app.state.engine.start(calls_waiting_step.options(workflow_id=workflow_id))
    return handle.workflow_id


@app.post("/wait/{workflow_id}")
async def wait(workflow_id: str) -> int:
    is_released.set()
    return await app.state.engine.run(calls_waiting_step.options(workflow_id=workflow_id))


@contextlib.asynccontextmanager
async def sync_lifespan(app: FastAPI) -> AsyncIterator[None]:
    with Engine(URL) as engine:
        app.state.engine = engine
        yield


sync_app = FastAPI(lifespan=sync_lifespan)


@sync_app.post("/run/{n}")
def sync_run(n: int) -> list[list[object]]:
    # in a thread of the server
    return sync_app.state.engine.run(checks_threads, n)
