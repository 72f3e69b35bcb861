"""Examples: each one runs and prints the expected output."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import pytest
from repository import ROOT
from watched_process import HANG_TIMEOUT
from web_servers import web_server

from stepfast import Client

EXAMPLES = ROOT / "examples" / "python"

EXPECTED_OUTPUTS = {
    "batches/backfill": (
        "199996 completed, 4 failed\n"
        "no currency for row 0\nno currency for row 50000\n"
        "no currency for row 100000\nno currency for row 150000\n"
        "4 retried\n200000 completed\n99900000 cents\n"
    ),
    "batches/load_csv": (
        "4998 of 5000 orders are saved, 14994 EUR\n"
        "orders.csv, line 2001: 'three' is no amount\norders.csv, line 4001: 'three' is no amount\n"
    ),
    "children": "['[tea][cup]', '[bread]']\n",
    "crash": (
        "process 1 killed by SIGKILL; steps that it ran: 1 2 3 4 5 6 7 8 9 10 11 \n"
        "the sum is 210\n"
        "process 2 ended; steps that it ran: 11 12 13 14 15 16 17 18 19 20 \n"
    ),
    "fan_out": "tea reserved, 3 EUR\nbread reserved, 5 EUR\nbutter reserved, 6 EUR\n",
    "graphs/compensation": (
        "reserve -> charge -> ship -> refund -> report\n"
        "shipped\n"
        "order\n"
        "└─ reserve             succeeded  N ms\n"
        "   └─ charge           succeeded  N ms\n"
        "      └─ ship          succeeded  N ms\n"
        "         └─ refund     skipped  (also after charge)\n"
        "            └─ report  succeeded  N ms  (also after ship)\n\n"
        "refunded 6 EUR\n"
        "order\n"
        "└─ reserve             succeeded  N ms\n"
        "   └─ charge           succeeded  N ms\n"
        "      └─ ship          failed  N ms  ValueError('out of stock')\n"
        "         └─ refund     succeeded  N ms  (also after charge)\n"
        "            └─ report  succeeded  N ms  (also after ship)\n\n"
    ),
    "graphs/etl": (
        "etl\n"
        "└─ extract\n"
        "   ├─ totals\n"
        "   │  └─ load\n"
        "   │     └─ report  (also after rejected)\n"
        "   └─ rejected\n\n"
        "2 products loaded, rejected: bread two\n"
        "{'cup': 4, 'tea': 8}\n"
    ),
    "graphs/map_over": "longest: shop/10\nsteps: 14\nfailed attempt: shop/3 is unreachable\n",
    "hello": "Hello, world!\n",
    "log": "parcel parcel-7 : begun\nparcel parcel-7 pack: packing tea\nparcel parcel-7 : done\n",
    "bulk": (
        "499300\n998 completed\n"
        "order-800 failed: order 800 has no card\norder-400 failed: order 400 has no card\n"
    ),
    "methods": "8 EUR from europe\n",
    "parallel": "14\n",
    "queues": (
        "one report: True\n"
        "cancelled: 2\n"
        "['ann: your parcel is here', 'ann: news 0', 'ann: news 1', 'ann: news 2']\n"
        "5 mails are sent\n"
    ),
    "retries": "paid order-7 at attempt 3\n",
    "sleep": "Ada, your tea is ready\n",
    "workers": "[tea 0][a card]\n100 orders are packed\n",
    "timeouts": "answered at attempt 2\nno confirmation in time\n",
}


def run(name: str, folder: pathlib.Path) -> str:
    process = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.parametrize("name", EXPECTED_OUTPUTS)
def test_example_prints_expected_output(name: str, tmp_path: pathlib.Path) -> None:
    # durations differ from run to run
    printed = re.sub(r"\d+(\.\d+)? m?s\b", "N ms", run(name, tmp_path))
    assert printed == EXPECTED_OUTPUTS[name]


def test_every_example_has_its_test() -> None:
    names = {path.relative_to(EXAMPLES).with_suffix("").as_posix() for path in EXAMPLES.rglob("*.py")}
    assert names == {
        *EXPECTED_OUTPUTS,
        "agent",
        "approval",
        "nightly",
        "outbox",
        "payload_size",
        "web",
    }


def last_reported_orders() -> int:
    """Returns the number of orders of the last night's day: the tenth day is reported at two o'clock."""
    return 10 if datetime.now(ZoneInfo("Europe/Berlin")).hour >= 2 else 9


def test_nights_are_reported(tmp_path: pathlib.Path) -> None:
    possible_last = {last_reported_orders()}
    first, header, *rows = run("nightly", tmp_path).splitlines()
    possible_last.add(last_reported_orders())
    assert first == "nights of the last week: 7"
    assert header.split() == ["day", "orders", "EUR", "instant"]
    *nights, by_hand = [row.split(maxsplit=3) for row in rows]
    last = int(nights[-1][1])
    assert last in possible_last
    assert [row[1:3] for row in nights] == [[str(n), str(5 * n)] for n in range(last - 6, last + 1)]
    assert all(re.fullmatch(r"\S+T0[01]:00:00Z", row[3]) for row in nights)
    # yesterday, at any time
    yesterday = date.fromisoformat(nights[-1][0]) + timedelta(days=10 - last)
    assert by_hand == [str(yesterday), "10", "50", "by hand"]


def test_payload_size_prints_its_table(tmp_path: pathlib.Path) -> None:
    lines = run("payload_size", tmp_path).splitlines()
    assert sum("bytes in" in line for line in lines) == 14
    assert lines[-1].split()[:4] == ["one", "batched", "step", "157.82"]
    assert len(lines) == 14 + 2 + 1 + 2 + 9


def test_outbox_saves_order_with_its_mail(url: str, tmp_path: pathlib.Path) -> None:
    shutil.copy(EXAMPLES / "outbox.py", tmp_path)
    store = url.partition("?")[0].replace("sqlite:/", "sqlite:////")
    with (
        web_server("outbox:app", tmp_path, STEPFAST_STORE=store) as server,
        httpx.Client(base_url=server.url, timeout=HANG_TIMEOUT) as client,
    ):
        response = client.post("/orders/order-7", params={"customer": "ann"})
        assert response.status_code == 201, response.text
        duplicate = client.post("/orders/order-7", params={"customer": "eve"})
        assert (duplicate.status_code, duplicate.json()) == (409, {"detail": "order-7 is there already"})
        server.send_signal(signal.SIGKILL)
        assert server.wait_for_end() == -signal.SIGKILL
    command = [sys.executable, "outbox.py"]
    environment = {**os.environ, "STEPFAST_STORE": store}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as worker:
        try:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "to ann: we have got your order order-7\n"
            with Client(store) as engine_client:
                handle = engine_client.get(response.json()["mail"])
                assert handle.result(HANG_TIMEOUT) == "sent"
                assert engine_client.count() == 1
        finally:
            worker.terminate()
        assert worker.wait(HANG_TIMEOUT) == 0


def test_expenses_are_approved_in_a_web_page(tmp_path: pathlib.Path) -> None:
    shutil.copy(EXAMPLES / "approval.py", tmp_path)
    store = f"sqlite:{tmp_path}/approval.db"
    with (
        web_server("approval:app", tmp_path) as server,
        httpx.Client(base_url=server.url, timeout=HANG_TIMEOUT) as client,
    ):
        for name, euros in (("<lunch>", 30), ("yacht", 300_000)):
            assert client.post(f"/expenses/{name}", params={"euros": euros}).status_code == 202
        while (page := client.get("/").text).count("<form") < 2:
            pass
        assert "&lt;lunch&gt;: 30 EUR" in page and "yacht: 300000 EUR" in page
        assert client.get("/expenses/boat").status_code == 404
        # the expenses survive the service
        server.send_signal(signal.SIGKILL)
        assert server.wait_for_end() == -signal.SIGKILL
    with (
        web_server("approval:app", tmp_path) as server,
        httpx.Client(base_url=server.url, timeout=HANG_TIMEOUT) as client,
        Client(store) as engine_client,
    ):
        page = client.get("/").text
        for name, decision, other in (("&lt;lunch&gt;", "approve", "reject"), ("yacht", "reject", "approve")):
            form = next(form for form in page.split("<form")[1:] if name in form)
            (action,) = re.findall(rf'formaction="([^"]+/{decision}\?[^"]+)"', form)
            assert client.post(action).headers["location"] == "/"
            late = client.post(action.replace(decision, other))
            assert late.status_code == 409 and "was decided before" in late.text
        assert engine_client.get("<lunch>").result(HANG_TIMEOUT) == "<lunch>: 30 EUR paid"
        assert engine_client.get("yacht").result(HANG_TIMEOUT) == "yacht: rejected"
        assert client.get("/expenses/yacht").json() == {"status": "completed", "outcome": "yacht: rejected"}
        page = client.get("/").text
        assert "<form" not in page and "<li>&lt;lunch&gt;: 30 EUR paid</li>" in page
        for path in ("yacht/approve", "yacht/pay", "boat/approve"):
            assert client.post(f"/expenses/{path}", params={"token": "wrong"}).status_code == 404


def test_agent_continues_its_answer_after_kill(tmp_path: pathlib.Path) -> None:
    shutil.copy(EXAMPLES / "agent.py", tmp_path)
    # the first service has time to be killed between two words
    with (
        web_server("agent:app", tmp_path, AGENT_PAUSE="0.2") as server,
        httpx.Client(base_url=server.url, timeout=HANG_TIMEOUT) as client,
    ):
        response = client.get("/")
        assert response.status_code == 200 and "EventSource" in response.text
        assert client.get("/answers/missing").status_code == 404
        started = client.post("/answers", params={"question": "umbrella?"})
        assert started.status_code == 202
        answer = f"/answers/{started.json()['workflow_id']}"
        received = read_events(client, answer, -1, 3)
        assert [data["word"] for _, data in received] == ["Let", "me", "look"]
        server.send_signal(signal.SIGKILL)
        assert server.wait_for_end() == -signal.SIGKILL
    with (
        web_server("agent:app", tmp_path, AGENT_PAUSE="0.01") as server,
        httpx.Client(base_url=server.url, timeout=HANG_TIMEOUT) as client,
    ):
        received += read_events(client, answer, received[-1][0])
        assert [offset for offset, _ in received] == list(range(len(received)))
        first = "Let me look at the weather in both cities first."
        second = "Today the sun shines in Rome and rain falls in Oslo."
        text = f"{first} {second} So take the umbrella to Oslo, and leave it there."
        assert shown_text(received) == text
        # the words of the killed process come first, and do not count
        assert len(received) >= len(text.split()) + 3
        assert received[0][1]["step"] == "1" and received[0][1]["attempt"] == 0
        assert read_events(client, answer, -1) == received
        assert client.get(answer, headers={"Last-Event-ID": "x"}).status_code == 422


def read_events(
    client: httpx.Client, path: str, last_id: int, count: int | None = None
) -> list[tuple[int, dict[str, Any]]]:
    """Reads server-sent events after the one with the last id: `count` events, or those until the end."""
    events: list[tuple[int, dict[str, Any]]] = []
    headers = {} if last_id < 0 else {"Last-Event-ID": str(last_id)}
    with client.stream("GET", path, headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = response.iter_lines()
        for line in lines:
            if line == "event: end":
                assert count is None
                return events
            if line.startswith("id: "):
                events.append((int(line[4:]), json.loads(next(lines).removeprefix("data: "))))
            if len(events) == count:
                return events
    raise AssertionError(f"the events have ended early: {events}")


def shown_text(events: list[tuple[int, dict[str, Any]]]) -> str:
    """Returns the text that the page of the agent shows after these events."""
    steps: dict[str, tuple[int, list[str]]] = {}
    for _, data in events:
        if steps.get(data["step"], (None,))[0] != data["attempt"]:
            steps[data["step"]] = (data["attempt"], [])
        steps[data["step"]][1].append(data["word"])
    return " ".join(word for _, words in steps.values() for word in words)


def test_web_serves_orders_after_kill(tmp_path: pathlib.Path) -> None:
    store = f"sqlite:{tmp_path}/web.db"
    shutil.copy(EXAMPLES / "web.py", tmp_path)
    with (
        web_server("web:app", tmp_path) as server,
        httpx.Client(base_url=server.url, timeout=HANG_TIMEOUT) as client,
        Client(store) as engine_client,
    ):
        assert client.get("/orders/order-7").status_code == 404
        for _ in range(2):
            response = client.post("/orders/order-7", params={"item": "tea"})
            assert (response.status_code, response.json()) == (202, {"workflow_id": "order-7"})
        assert engine_client.get("order-7").result(HANG_TIMEOUT) == "tea sent, 300 paid"
        sent = {"status": "completed", "outcome": "tea sent, 300 paid"}
        assert client.get("/orders/order-7").json() == sent
        other = client.post("/orders/order-7", params={"item": "bread"})
        assert other.status_code == 409 and "order-7" in other.json()["detail"]
        assert client.post("/orders/order-9", params={"item": "piano"}).status_code == 202
        with pytest.raises(ValueError, match="too heavy"):
            engine_client.get("order-9").result(HANG_TIMEOUT)
        failed = client.get("/orders/order-9")
        answer = {"status": "failed", "error": "a piano is too heavy"}
        assert (failed.status_code, failed.json()) == (200, answer)
        assert client.post("/orders/order-8", params={"item": "bread"}).status_code == 202
        server.send_signal(signal.SIGKILL)
        assert server.wait_for_end() == -signal.SIGKILL
    with (
        web_server("web:app", tmp_path) as server,
        httpx.Client(base_url=server.url, timeout=HANG_TIMEOUT) as client,
        Client(store) as engine_client,
    ):
        assert engine_client.get("order-8").result(HANG_TIMEOUT) == "bread sent, 500 paid"
        sent = {"status": "completed", "outcome": "bread sent, 500 paid"}
        assert client.get("/orders/order-8").json() == sent
        server.send_signal(signal.SIGINT)
        assert server.wait_for_end() in (0, -signal.SIGINT), server.log
        assert "Traceback" not in server.log, server.log
