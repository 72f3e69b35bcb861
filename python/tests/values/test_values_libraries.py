"""Exceptions of common libraries come back as instances of their classes."""

from __future__ import annotations

import asyncio
import email.message
import io
import urllib.error
from collections.abc import Callable
from typing import Any

import aiohttp
import httpx
import pydantic
import pydantic_core
import pytest
import requests
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from stepfast import AsyncEngine, Engine, step, workflow
from stepfast.values import EncodeError, decode, decode_exception, encode, encode_exception

ADDRESS = "https://shop.test/orders"
UNRECORDED = "it could not be recorded with the exception"


def again(error: BaseException) -> Any:
    """The exception, recorded twice."""
    once = decode_exception(encode_exception(error))
    back = decode_exception(encode_exception(once))
    for each in (once, back):
        assert isinstance(each, type(error)) and type(each).__name__ == type(error).__name__
        assert (type(each).__module__, str(each)) == (type(error).__module__, str(error))
    assert repr(once) == repr(back)
    return back


def raised(call: Callable[[], Any]) -> Any:
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


def httpx_status() -> httpx.HTTPStatusError:
    response = httpx.Response(404, text="no such order", request=httpx.Request("GET", ADDRESS))
    error = raised(response.raise_for_status)
    assert isinstance(error, httpx.HTTPStatusError)
    return error


def requests_status() -> requests.HTTPError:
    response = requests.Response()
    response.status_code, response.reason, response.url = 503, "Busy", ADDRESS
    response.request = requests.Request("POST", ADDRESS).prepare()
    error = raised(response.raise_for_status)
    assert isinstance(error, requests.HTTPError)
    return error


def aiohttp_status() -> aiohttp.ClientResponseError:
    headers = CIMultiDictProxy(CIMultiDict(server="shop"))
    info = aiohttp.RequestInfo(URL(ADDRESS), "GET", headers, URL(ADDRESS))
    return aiohttp.ClientResponseError(info, (), status=429, message="Too many", headers=headers)


def test_status_error_of_httpx_comes_back() -> None:
    back = again(httpx_status())
    assert back.response.status_code == 404 and back.response.is_client_error
    assert back.request.method == "GET"
    for missing in ("headers", "text", "content"):
        with pytest.raises(
            AttributeError, match=f"'Response' object has no attribute '{missing}': {UNRECORDED}"
        ):
            getattr(back.response, missing)
    with pytest.raises(AttributeError, match="'content'"):
        back.response.json()
    with pytest.raises(AttributeError, match=f"'Request' object has no attribute 'url': {UNRECORDED}"):
        back.request.url  # noqa: B018


def test_timeout_of_httpx_comes_back() -> None:
    back = again(httpx.ReadTimeout("slow", request=httpx.Request("GET", ADDRESS)))
    assert isinstance(back, httpx.TimeoutException) and back.args == ("slow",)
    assert again(httpx.ConnectTimeout("slow")).args == ("slow",)


def test_status_error_of_requests_comes_back() -> None:
    back = again(requests_status())
    assert isinstance(back, OSError)
    response = back.response
    assert (response.status_code, response.reason, response.url) == (503, "Busy", ADDRESS)
    assert not response.ok and repr(response) == "<Response [503]>"
    assert (back.request.method, back.request.url) == ("POST", ADDRESS)
    with pytest.raises(AttributeError, match=f"'Response' object has no attribute 'text': {UNRECORDED}"):
        response.text  # noqa: B018


def test_connection_error_of_requests_comes_back() -> None:
    # no server listens at the port of a service that nobody uses
    back = again(raised(lambda: requests.get("http://127.0.0.1:9/", timeout=10)))
    assert isinstance(back, requests.ConnectionError) and back.request.method == "GET"


def test_errors_of_aiohttp_come_back() -> None:
    back = again(aiohttp_status())
    assert (back.status, back.message) == (429, "Too many")
    with pytest.raises(AttributeError, match=f"has no attribute 'headers': {UNRECORDED}"):
        back.headers  # noqa: B018

    async def connect() -> None:
        async with aiohttp.ClientSession() as session:
            await session.get("http://127.0.0.1:9/")

    back = again(raised(lambda: asyncio.run(connect())))
    assert isinstance(back, aiohttp.ClientConnectorError) and isinstance(back, OSError)
    assert isinstance(again(aiohttp.ServerDisconnectedError()), aiohttp.ServerDisconnectedError)


@pytest.mark.parametrize("body", [io.BytesIO(b"no such order"), None], ids=["body", "no body"])
def test_errors_of_urllib_come_back(body: io.BytesIO | None) -> None:
    headers = email.message.Message()
    with urllib.error.HTTPError(ADDRESS, 404, "Not found", headers, body) as error:
        back = again(error)
    assert (back.code, back.msg, back.reason, back.filename) == (404, "Not found", "Not found", ADDRESS)
    with pytest.raises(AttributeError, match=UNRECORDED):
        back.read()
    refused = again(urllib.error.URLError(ConnectionRefusedError(111, "refused")))
    assert isinstance(refused.reason, ConnectionRefusedError)


class FakeStatusError(Exception):
    """Made as the clients of language models make theirs."""

    def __init__(self, message: str, *, response: httpx.Response, body: object) -> None:
        super().__init__(message)
        self.message, self.body, self.request = message, body, response.request
        self.response, self.status_code = response, response.status_code
        self.request_id = response.headers.get("x-request-id")


def test_errors_with_a_response_come_back() -> None:
    response = httpx.Response(429, headers={"x-request-id": "r1"}, request=httpx.Request("POST", ADDRESS))
    back = again(FakeStatusError("slow down", response=response, body={"code": "busy"}))
    assert (back.status_code, back.request_id, back.body) == (429, "r1", {"code": "busy"})
    assert back.response.status_code == 429


class Order(pydantic.BaseModel):
    number: int
    items: list[str]

    @pydantic.field_validator("number")
    @classmethod
    def is_known(cls, number: int) -> int:
        if number == 13:
            raise ValueError("unlucky {number}")
        if number == 14:
            raise pydantic_core.PydanticCustomError("unlucky", "no {number}, {{none}}", {"number": number})
        return number


class Secret(pydantic.BaseModel, hide_input_in_errors=True):
    number: int


class Unrecordable:
    def __repr__(self) -> str:
        return "<unrecordable>"


def validation_error(call: Callable[[], Any]) -> pydantic.ValidationError:
    error = raised(call)
    assert isinstance(error, pydantic.ValidationError)
    return error


@pytest.mark.parametrize(
    "call",
    [
        lambda: Order(number="x", items=[1]),  # type: ignore[arg-type, list-item]
        lambda: Order(number=13, items="ab"),  # type: ignore[arg-type]
        lambda: Order(number=14, items=[]),
        lambda: Order.model_validate_json('{"number": [], "items": {}}'),
        lambda: Secret(number="x"),  # type: ignore[arg-type]
        lambda: pydantic.TypeAdapter(list[Order]).validate_python([{"number": 1}]),
    ],
)
def test_validation_errors_come_back(call: Callable[[], Any]) -> None:
    error = validation_error(call)
    error.add_note("a note")
    for back in (again(error), decode(encode(error))):
        assert type(back) is pydantic.ValidationError and back.__notes__ == ["a note"]
        assert back.title == error.title
        seen, expected = ([{**line, "ctx": None} for line in it.errors()] for it in (back, error))
        if call.__code__.co_consts and 14 not in call.__code__.co_consts:
            assert seen == expected
        assert [line["type"] for line in seen] == [line["type"] for line in expected]


def test_validation_error_of_an_unrecordable_input_comes_back() -> None:
    error = validation_error(lambda: Order(number=Unrecordable(), items=[]))  # type: ignore[arg-type]
    back = again(error)
    assert type(back) is pydantic.ValidationError
    assert repr(back.errors()[0]["input"]) == "<unrecordable>"
    with pytest.raises(EncodeError):
        encode(error)


@step
def asks_the_shop(library: str) -> None:
    raise {"httpx": httpx_status, "requests": requests_status, "aiohttp": aiohttp_status}[library]()


@workflow
def handles_errors_of_the_shop(library: str) -> list[Any]:
    """Takes the same way in its first run, and in a replay."""
    try:
        asks_the_shop(library)
    except httpx.HTTPStatusError as error:
        return [error.response.status_code, hasattr(error.response, "headers")]
    except requests.HTTPError as error:
        assert error.response is not None
        return [error.response.status_code, hasattr(error.response, "headers")]
    except aiohttp.ClientResponseError as error:
        return [error.status, hasattr(error, "headers")]
    return []


@workflow
async def handles_errors_async(library: str) -> list[Any]:
    try:
        await asks_the_shop.in_thread(library)
    except (httpx.HTTPStatusError, requests.HTTPError, aiohttp.ClientResponseError) as error:
        return [type(error).__name__]
    return []


def test_workflow_catches_the_exceptions_of_libraries(url: str) -> None:
    with Engine(url) as engine:
        for library, status in (("httpx", 404), ("requests", 503), ("aiohttp", 429)):
            assert engine.run(handles_errors_of_the_shop, library) == [status, False]
            assert engine.start(handles_errors_of_the_shop, library).result() == [status, False]

    async def main() -> list[list[Any]]:
        async with AsyncEngine(url) as engine:
            return [await engine.run(handles_errors_async, each) for each in ("httpx", "requests", "aiohttp")]

    assert asyncio.run(main()) == [["HTTPStatusError"], ["HTTPError"], ["ClientResponseError"]]


@workflow
def fails_with_the_shop(library: str) -> None:
    asks_the_shop(library)


def test_caller_catches_the_exceptions_of_libraries(url: str) -> None:
    with Engine(url) as engine:
        handle = engine.start(fails_with_the_shop, "httpx")
        with pytest.raises(httpx.HTTPStatusError, match="404 Not Found"):
            handle.result()
        error = engine.show(handle.workflow_id).error
        assert isinstance(error, httpx.HTTPStatusError) and error.response.status_code == 404
        with pytest.raises(requests.HTTPError, match="503 Server Error"):
            engine.run(fails_with_the_shop, "requests")
