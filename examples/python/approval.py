"""Expenses that a person approves: `uvicorn approval:app`, with fastapi and uvicorn installed.

curl -X POST 'http://127.0.0.1:8000/expenses/lunch?euros=30'

Then open http://127.0.0.1:8000 in a browser, and approve or reject the expense. The approval may take months.
Meanwhile the service may be restarted, or killed.
"""

import html
import pathlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from stepfast import (
    AsyncEngine,
    AsyncToken,
    InvalidArgument,
    NotFound,
    TokenAnswered,
    create_token,
    step,
    workflow,
)

#: The inbox of the manager: a file for each mail, which has the id of its token as its name.
INBOX = pathlib.Path("inbox")


@step
async def send_link(token_id: str, text: str) -> None:
    # a real service sends a mail; a second sending replaces the first one
    INBOX.mkdir(exist_ok=True)
    (INBOX / token_id).write_text(text)


@step
async def withdraw_link(token_id: str) -> None:
    (INBOX / token_id).unlink(missing_ok=True)


@step
async def pay(name: str, euros: int) -> str:
    return f"{name}: {euros} EUR paid"


@workflow
async def expense(name: str, euros: int) -> str:
    token: AsyncToken[bool] = await create_token()
    await send_link(token.id, f"{name}: {euros} EUR")
    is_approved = await token.result(timeout=timedelta(days=7))
    if is_approved is None:
        # the token is the same, so the first link works too
        await send_link(token.id, f"reminder: {name}: {euros} EUR")
        is_approved = await token.result()
    await withdraw_link(token.id)
    return await pay(name, euros) if is_approved else f"{name}: rejected"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    async with AsyncEngine("sqlite://approval.db") as engine:
        app.state.engine = engine
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/expenses/{name}", status_code=202)
async def submit(name: str, euros: int, request: Request) -> dict[str, str]:
    engine: AsyncEngine = request.app.state.engine
    handle = await engine.start(expense.options(workflow_id=name), name, euros)
    return {"workflow_id": handle.workflow_id}


@app.get("/expenses/{name}")
async def outcome(name: str, request: Request) -> dict[str, str | None]:
    engine: AsyncEngine = request.app.state.engine
    try:
        record = await engine.show(name)
    except NotFound as error:
        raise HTTPException(404, "there is no such expense") from error
    return {"status": record.execution.status, "outcome": record.output}


@app.get("/")
async def show_inbox() -> HTMLResponse:
    mails = sorted(INBOX.iterdir()) if INBOX.exists() else []
    forms = [
        f'<form method="post">{html.escape(mail.read_text())} '
        f'<button formaction="/tokens/{mail.name}/approve">Approve</button> '
        f'<button formaction="/tokens/{mail.name}/reject">Reject</button></form>'
        for mail in mails
    ]
    return HTMLResponse("<h1>Expenses to approve</h1>" + ("".join(forms) or "<p>none</p>"))


@app.post("/tokens/{token_id}/{decision}")
async def decide(token_id: str, decision: str, request: Request) -> RedirectResponse:
    if decision not in ("approve", "reject"):
        raise HTTPException(404, "a decision is approve or reject")
    engine: AsyncEngine = request.app.state.engine
    try:
        await engine.complete_token(token_id, decision == "approve")
    except TokenAnswered as error:
        raise HTTPException(409, "this expense was decided before") from error
    except InvalidArgument as error:
        raise HTTPException(404, "there is no such expense") from error
    return RedirectResponse("/", status_code=303)
