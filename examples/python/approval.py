"""Expenses that a person approves: `uvicorn approval:app`, with fastapi and uvicorn installed.

curl -X POST 'http://127.0.0.1:8000/expenses/lunch?euros=30'

Then open http://127.0.0.1:8000 in a browser, and approve or reject the expense: the page shows the outcome.
The approval may take months. Meanwhile the service may be restarted, or killed.
"""

import html
import json
import pathlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from urllib.parse import quote

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
async def send_link(token_id: str, name: str, text: str) -> None:
    # a real service sends a mail; a second sending replaces the first one
    draft = pathlib.Path(f"{token_id}.draft")
    draft.write_text(json.dumps({"token_id": token_id, "name": name, "text": text}))
    INBOX.mkdir(exist_ok=True)
    draft.replace(INBOX / token_id)


@step
async def withdraw_link(token_id: str) -> None:
    (INBOX / token_id).unlink(missing_ok=True)


@step
async def pay(name: str, euros: int) -> str:
    return f"{name}: {euros} EUR paid"


@workflow
async def expense(name: str, euros: int) -> str:
    token: AsyncToken[bool] = await create_token()
    await send_link(token.id, name, f"{name}: {euros} EUR")
    is_approved = await token.result(timeout=timedelta(days=7))
    if is_approved is None:
        # the token is the same, so the first link works too
        await send_link(token.id, name, f"reminder: {name}: {euros} EUR")
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
async def show_expenses(request: Request) -> HTMLResponse:
    engine: AsyncEngine = request.app.state.engine
    forms = [decision_form(**mail) for mail in read_inbox()]
    completed = await engine.list(workflow=expense, status="completed", limit=20)
    found = await engine.get_many(execution.workflow_id for execution in completed)
    outcomes = [html.escape(one.output) for one in found if one is not None]
    return page(section("To approve", forms) + section("Decided", outcomes))


@app.post("/expenses/{name}/{decision}", response_model=None)
async def decide(name: str, decision: str, token: str, request: Request) -> HTMLResponse | RedirectResponse:
    if decision not in ("approve", "reject"):
        raise HTTPException(404, "a decision is approve or reject")
    engine: AsyncEngine = request.app.state.engine
    try:
        handle = await engine.get(name)
        await engine.complete_token(token, decision == "approve")
    except TokenAnswered:
        return page('<p role="alert">This expense was decided before.</p><a href="/">All expenses</a>', 409)
    except (InvalidArgument, NotFound) as error:
        raise HTTPException(404, "there is no such expense") from error
    # the payment takes a moment; then the page shows the outcome
    await handle
    return RedirectResponse("/", status_code=303)


def read_inbox() -> list[dict[str, str]]:
    mails: list[dict[str, str]] = []
    for path in sorted(INBOX.glob("*")):
        # a mail may be withdrawn meanwhile
        with suppress(FileNotFoundError):
            mails.append(json.loads(path.read_text()))
    return mails


def decision_form(token_id: str, name: str, text: str) -> str:
    buttons = [
        f'<button formaction="/expenses/{quote(name)}/{decision}?token={token_id}">{label}</button>'
        for decision, label in (("approve", "Approve"), ("reject", "Reject"))
    ]
    return f'<form method="post">{html.escape(text)} {" ".join(buttons)}</form>'


def section(title: str, items: list[str]) -> str:
    body = "<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>" if items else "<p>none</p>"
    return f'<section aria-label="{title}"><h2>{title}</h2>{body}</section>'


def page(body: str, status_code: int = 200) -> HTMLResponse:
    head = '<!doctype html><html lang="en"><title>Expenses</title>'
    return HTMLResponse(f"{head}<main><h1>Expenses</h1>{body}</main></html>", status_code)
