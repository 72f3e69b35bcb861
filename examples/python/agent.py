"""An agent whose answer grows in a web page: `uvicorn agent:app`, with fastapi and uvicorn installed.

Open http://127.0.0.1:8000 in a browser, and ask. Kill the service while it answers, and start it again: the
answer continues in the open page. The model is a script; put the client of a real one into `ask_model`.
"""

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException, Request
from fastapi.responses import HTMLResponse, StreamingResponse

from stepfast import AsyncEngine, NotFound, step, workflow, write_stream

#: The pause between two words of the model, in seconds.
PAUSE = float(os.environ.get("AGENT_PAUSE", "0.1"))


def scripted_reply(messages: list[str]) -> tuple[str, list[str]]:
    """Returns the text of the model, and the cities whose weather the model wants to know."""
    found = [message for message in messages if message.startswith("weather: ")]
    if not found:
        return "Let me look at the weather in both cities first.", ["Rome", "Oslo"]
    facts = " and ".join(message.removeprefix("weather: ") for message in found)
    return f"Today {facts}. So take the umbrella to Oslo, and leave it there.", []


@step(retries=3)
async def ask_model(messages: list[str]) -> tuple[str, list[str]]:
    text, cities = scripted_reply(messages)
    for word in text.split():
        await asyncio.sleep(PAUSE)
        await write_stream("answer", word)
    return text, cities


@step(retries=3)
async def look_up_weather(city: str) -> str:
    await asyncio.sleep(PAUSE)
    return {"Rome": "the sun shines in Rome", "Oslo": "rain falls in Oslo"}[city]


@workflow
async def agent(question: str) -> str:
    messages = [question]
    while True:
        text, cities = await ask_model(messages)
        if not cities:
            return text
        # both tools run at once
        weather = await asyncio.gather(*(look_up_weather(city) for city in cities))
        messages += [text, *(f"weather: {fact}" for fact in weather)]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    async with AsyncEngine("sqlite://agent.db") as engine:
        app.state.engine = engine
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/answers", status_code=202)
async def ask(question: str, request: Request) -> dict[str, str]:
    engine: AsyncEngine = request.app.state.engine
    handle = await engine.start(agent, question)
    return {"workflow_id": handle.workflow_id}


@app.get("/answers/{workflow_id}")
async def follow(
    workflow_id: str, request: Request, last_event_id: Annotated[int, Header(ge=-1)] = -1
) -> StreamingResponse:
    engine: AsyncEngine = request.app.state.engine
    try:
        handle = await engine.get(workflow_id)
    except NotFound as error:
        raise HTTPException(404, "there is no such answer") from error

    async def events() -> AsyncGenerator[str]:
        # a browser that has lost the connection sends the id of the last event that it has received
        async for word in handle.read_stream("answer", offset=last_event_id + 1):
            data: dict[str, Any] = {"step": word.step, "attempt": word.attempt_offset, "word": word.value}
            yield f"id: {word.offset}\ndata: {json.dumps(data)}\n\n"
        yield "event: end\ndata:\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


@app.get("/")
async def page() -> HTMLResponse:
    return HTMLResponse(PAGE)


PAGE = """\
<!doctype html>
<html lang="en">
<title>Agent</title>
<main>
<h1>Agent</h1>
<form>
  <label>Question <input name="question" value="Do I need an umbrella?" size="40" required></label>
  <button>Ask</button>
</form>
<section aria-label="Answer"><p id="answer"></p></section>
<p id="state" role="status"></p>
</main>
<script>
const show = (id, text) => { document.getElementById(id).textContent = text }
let source

function follow(workflowId) {
  // the page shows one answer at a time
  source?.close()
  // the words of each step, with the attempt that wrote them
  const steps = new Map()
  source = new EventSource("/answers/" + workflowId)
  source.onmessage = (event) => {
    const { step, attempt, word } = JSON.parse(event.data)
    // an attempt that has failed, or whose process died, left words that do not count
    if (steps.get(step)?.attempt !== attempt) steps.set(step, { attempt, words: [] })
    steps.get(step).words.push(word)
    show("answer", [...steps.values()].map(({ words }) => words.join(" ")).join(" "))
  }
  source.onopen = () => show("state", "the agent answers")
  source.onerror = (event) => {
    show("state", "the connection is lost; it continues by itself")
    // a browser may stop its attempts while the service is down
    if (event.target.readyState === EventSource.CLOSED) {
      setTimeout(() => { if (event.target === source) follow(workflowId) }, 1000)
    }
  }
  source.addEventListener("end", () => { source.close(); show("state", "done") })
}

document.querySelector("form").onsubmit = async (event) => {
  event.preventDefault()
  const query = new URLSearchParams(new FormData(event.target))
  try {
    const response = await fetch("/answers?" + query, { method: "POST" })
    location.hash = (await response.json()).workflow_id
    show("answer", "")
    follow(location.hash.slice(1))
  } catch {
    show("state", "the service is down; ask again")
  }
}
if (location.hash) follow(location.hash.slice(1))
</script>
</html>
"""
