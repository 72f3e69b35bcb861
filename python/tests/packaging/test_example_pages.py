"""Web pages of examples: a person uses them in a browser, while the service is killed and started again."""

import pathlib
import re
import shutil
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from browsers import open_page
from playwright.sync_api import Error, Locator, Page, expect
from repository import ROOT
from watched_process import HANG_TIMEOUT
from web_servers import WebServer, reserved_port, web_server

from stepfast import Client

EXAMPLES = ROOT / "examples" / "python"

ANSWER = (
    "Let me look at the weather in both cities first. Today the sun shines in Rome and rain falls in Oslo. "
    "So take the umbrella to Oslo, and leave it there."
)
#: The texts of the answer while it grows by one word after the other.
GROWING = [" ".join(ANSWER.split()[: count + 1]) for count in range(len(ANSWER.split()))]
#: A pause between two words that leaves time for what happens in the middle of the answer, in seconds.
SLOW, FAST = "0.2", "0.01"


@pytest.fixture
def page() -> Iterator[Page]:
    """An empty page of a browser."""
    with open_page() as page:
        yield page


@pytest.fixture
def port() -> Iterator[int]:
    """The port of the services of a test. A page that is open finds the next service there."""
    with reserved_port() as port:
        yield port


def kill(server: WebServer) -> None:
    server.send_signal(signal.SIGKILL)
    assert server.wait_for_end() == -signal.SIGKILL


def answer_of(page: Page) -> Locator:
    return page.get_by_role("region", name="Answer")


def state_of(page: Page) -> Locator:
    return page.get_by_role("status")


def ask(page: Page, question: str) -> None:
    page.get_by_label("Question").fill(question)
    page.get_by_role("button", name="Ask").click()


def record_texts(page: Page) -> None:
    """Begins to record each text that the answer shows, with its time."""
    answer_of(page).evaluate(
        """answer => {
          window.shown = []
          const record = () => window.shown.push([answer.textContent, Date.now() / 1000])
          new MutationObserver(record).observe(answer, { subtree: true, childList: true })
        }"""
    )


def recorded_texts(page: Page) -> list[tuple[str, float]]:
    """Returns the texts that the answer has shown. An empty answer is no text."""
    shown: list[Any] = page.evaluate("window.shown")
    return [(text, time) for text, time in shown if text]


def expect_whole_answer(page: Page) -> None:
    expect(state_of(page)).to_have_text("done")
    expect(answer_of(page)).to_have_text(ANSWER)


def expect_first_words(page: Page) -> None:
    expect(answer_of(page)).to_have_text(re.compile("^Let me look"))
    assert answer_of(page).text_content() != ANSWER


def test_answer_grows_word_by_word(page: Page, tmp_path: pathlib.Path) -> None:
    shutil.copy(EXAMPLES / "agent.py", tmp_path)
    with (
        web_server("agent:app", tmp_path, AGENT_PAUSE="0.1") as server,
        Client(f"sqlite:{tmp_path}/agent.db") as client,
    ):
        page.goto(server.url)
        record_texts(page)
        ask(page, "Is it wet & cold in Oslo?")
        expect_whole_answer(page)
        shown = recorded_texts(page)
        assert [text for text, _ in shown] == GROWING
        workflow_id = page.url.partition("#")[2]
        assert client.show(workflow_id).args == ("Is it wet & cold in Oslo?",)
        # the page shows the first word before the model has written the last one
        *_, last = client.read_stream(workflow_id, "answer")
        assert shown[0][1] < last.written_at.timestamp()


def test_answer_is_whole_after_reload(page: Page, tmp_path: pathlib.Path) -> None:
    shutil.copy(EXAMPLES / "agent.py", tmp_path)
    with web_server("agent:app", tmp_path, AGENT_PAUSE="0.1") as server:
        page.goto(server.url)
        ask(page, "umbrella?")
        expect_first_words(page)
        page.reload()
        expect_whole_answer(page)
        # the page of an answer that has ended shows the answer too
        page.reload()
        expect_whole_answer(page)


def test_next_question_replaces_answer(page: Page, tmp_path: pathlib.Path) -> None:
    shutil.copy(EXAMPLES / "agent.py", tmp_path)
    with web_server("agent:app", tmp_path, AGENT_PAUSE="0.1") as server:
        page.goto(server.url)
        ask(page, "umbrella?")
        expect_first_words(page)
        first_url = page.url
        record_texts(page)
        ask(page, "coat?")
        page.wait_for_url(lambda url: url != first_url)
        expect_whole_answer(page)
        texts = [text for text, _ in recorded_texts(page)]
        # words of the first answer may come until the second question has its id
        assert texts[texts.index("Let") :] == GROWING


def test_pages_show_answer_once_after_kill(page: Page, port: int, tmp_path: pathlib.Path) -> None:
    shutil.copy(EXAMPLES / "agent.py", tmp_path)
    other = page.context.new_page()
    with web_server("agent:app", tmp_path, port=port, AGENT_PAUSE=SLOW) as server:
        page.goto(server.url)
        record_texts(page)
        ask(page, "umbrella?")
        expect_first_words(page)
        other.goto(page.url)
        expect_first_words(other)
        kill(server)
    expect(state_of(page)).to_have_text("the connection is lost; it continues by itself")
    expect_first_words(page)
    # a person reloads one of the pages, and the other one stays open
    with pytest.raises(Error, match="ERR_CONNECTION_REFUSED"):
        other.reload()
    with web_server("agent:app", tmp_path, port=port, AGENT_PAUSE=FAST):
        expect_whole_answer(page)
        texts = [text for text, _ in recorded_texts(page)]
        # the words of the killed process were discarded when its step began again
        assert texts[-len(GROWING) :] == GROWING
        assert texts[: -len(GROWING)] == GROWING[: len(texts) - len(GROWING)]
        other.goto(page.url)
        expect_whole_answer(other)


def test_question_is_asked_again_after_kill(page: Page, port: int, tmp_path: pathlib.Path) -> None:
    shutil.copy(EXAMPLES / "agent.py", tmp_path)
    with web_server("agent:app", tmp_path, port=port) as server:
        page.goto(server.url)
        kill(server)
    ask(page, "umbrella?")
    expect(state_of(page)).to_have_text("the service is down; ask again")
    with web_server("agent:app", tmp_path, port=port, AGENT_PAUSE=FAST):
        ask(page, "umbrella?")
        expect_whole_answer(page)


def test_expenses_are_decided_by_clicks(page: Page, port: int, tmp_path: pathlib.Path) -> None:
    shutil.copy(EXAMPLES / "approval.py", tmp_path)
    to_approve = page.get_by_role("region", name="To approve").get_by_role("listitem")
    decided = page.get_by_role("region", name="Decided").get_by_role("listitem")
    with (
        web_server("approval:app", tmp_path, port=port) as server,
        httpx.Client(base_url=server.url, timeout=HANG_TIMEOUT) as client,
    ):
        for name, euros in (("<lunch>", 30), ("yacht", 300_000)):
            assert client.post(f"/expenses/{name}", params={"euros": euros}).status_code == 202
        while client.get("/").text.count("<form") < 2:
            pass
        page.goto(server.url)
        expect(to_approve).to_have_count(2)
        expect(decided).to_have_count(0)
        stale = page.context.new_page()
        stale.goto(server.url)
        to_approve.filter(has_text="<lunch>: 30 EUR").get_by_role("button", name="Approve").click()
        expect(decided).to_have_text(["<lunch>: 30 EUR paid"])
        expect(to_approve).to_have_text([re.compile("^yacht: 300000 EUR")])
        # the other page still has the button
        stale.get_by_role("listitem").filter(has_text="<lunch>").get_by_role("button", name="Reject").click()
        expect(stale.get_by_role("alert")).to_have_text("This expense was decided before.")
        stale.get_by_role("link", name="All expenses").click()
        expect(stale.get_by_role("region", name="Decided")).to_contain_text("<lunch>: 30 EUR paid")
        kill(server)
    # the open page works with the next service
    with web_server("approval:app", tmp_path, port=port) as server:
        to_approve.get_by_role("button", name="Reject").click()
        expect(decided).to_have_text(["yacht: rejected", "<lunch>: 30 EUR paid"])
        expect(page.get_by_role("region", name="To approve")).to_contain_text("none")
        kill(server)
    with web_server("approval:app", tmp_path, port=port):
        page.reload()
        expect(decided).to_have_text(["yacht: rejected", "<lunch>: 30 EUR paid"])
