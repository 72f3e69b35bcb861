"""Records of exceptions that common libraries raise."""

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

ORDERS_URL = "https://shop.test/orders"
UNRECORDED_REASON = "it could not be recorded with the exception"


def record_twice(error: BaseException) -> Any:
    """Returns the exception after two round trips, each of which must keep its class and text."""
    once = decode_exception(encode_exception(error))
    decoded = decode_exception(encode_exception(once))
    for each in (once, decoded):
        assert isinstance(each, type(error)) and type(each).__name__ == type(error).__name__
        assert (type(each).__module__, str(each)) == (type(error).__module__, str(error))
    assert repr(once) == repr(decoded)
    return decoded


def exception_of(call: Callable[[], Any]) -> Any:
    """Returns the exception that a call raises."""
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


def make_httpx_error() -> httpx.HTTPStatusError:
    response = httpx.Response(404, text="no such order", request=httpx.Request("GET", ORDERS_URL))
    error = exception_of(response.raise_for_status)
    assert isinstance(error, httpx.HTTPStatusError)
    return error


def make_requests_error() -> requests.HTTPError:
    response = requests.Response()
    response.status_code, response.reason, response.url = 503, "Busy", ORDERS_URL
    response.request = requests.Request("POST", ORDERS_URL).prepare()
    error = exception_of(response.raise_for_status)
    assert isinstance(error, requests.HTTPError)
    return error


def make_aiohttp_error() -> aiohttp.ClientResponseError:
    headers = CIMultiDictProxy(CIMultiDict(server="shop"))
    info = aiohttp.RequestInfo(URL(ORDERS_URL), "GET", headers, URL(ORDERS_URL))
    return aiohttp.ClientResponseError(info, (), status=429, message="Too many", headers=headers)


def test_status_error_of_httpx_survives_round_trip() -> None:
    decoded = record_twice(make_httpx_error())
    assert decoded.response.status_code == 404 and decoded.response.is_client_error
    assert decoded.request.method == "GET"
    for missing in ("headers", "text", "content"):
        with pytest.raises(
            AttributeError, match=f"'Response' object has no attribute '{missing}': {UNRECORDED_REASON}"
        ):
            getattr(decoded.response, missing)
    with pytest.raises(AttributeError, match="'content'"):
        decoded.response.json()
    with pytest.raises(AttributeError, match=f"'Request' object has no attribute 'url': {UNRECORDED_REASON}"):
        decoded.request.url  # noqa: B018


def test_timeout_of_httpx_survives_round_trip() -> None:
    decoded = record_twice(httpx.ReadTimeout("slow", request=httpx.Request("GET", ORDERS_URL)))
    assert isinstance(decoded, httpx.TimeoutException) and decoded.args == ("slow",)
    assert record_twice(httpx.ConnectTimeout("slow")).args == ("slow",)


def test_status_error_of_requests_survives_round_trip() -> None:
    decoded = record_twice(make_requests_error())
    assert isinstance(decoded, OSError)
    response = decoded.response
    assert (response.status_code, response.reason, response.url) == (503, "Busy", ORDERS_URL)
    assert not response.ok and repr(response) == "<Response [503]>"
    assert (decoded.request.method, decoded.request.url) == ("POST", ORDERS_URL)
    with pytest.raises(
        AttributeError, match=f"'Response' object has no attribute 'text': {UNRECORDED_REASON}"
    ):
        response.text  # noqa: B018


def test_connection_error_of_requests_survives_round_trip() -> None:
    # no server listens on port 9, that of the obsolete discard service
    decoded = record_twice(exception_of(lambda: requests.get("http://127.0.0.1:9/", timeout=10)))
    assert isinstance(decoded, requests.ConnectionError) and decoded.request.method == "GET"


def test_error_of_aiohttp_survives_round_trip() -> None:
    decoded = record_twice(make_aiohttp_error())
    assert (decoded.status, decoded.message) == (429, "Too many")
    with pytest.raises(AttributeError, match=f"has no attribute 'headers': {UNRECORDED_REASON}"):
        decoded.headers  # noqa: B018

    async def connect() -> None:
        async with aiohttp.ClientSession() as session:
            await session.get("http://127.0.0.1:9/")

    decoded = record_twice(exception_of(lambda: asyncio.run(connect())))
    assert isinstance(decoded, aiohttp.ClientConnectorError) and isinstance(decoded, OSError)
    assert isinstance(record_twice(aiohttp.ServerDisconnectedError()), aiohttp.ServerDisconnectedError)


@pytest.mark.parametrize("body", [io.BytesIO(b"no such order"), None], ids=["body", "no body"])
def test_error_of_urllib_survives_round_trip(body: io.BytesIO | None) -> None:
    headers = email.message.Message()
    with urllib.error.HTTPError(ORDERS_URL, 404, "Not found", headers, body) as error:
        decoded = record_twice(error)
    assert (decoded.code, decoded.msg, decoded.reason, decoded.filename) == (
        404,
        "Not found",
        "Not found",
        ORDERS_URL,
    )
    with pytest.raises(AttributeError, match=UNRECORDED_REASON):
        decoded.read()
    refused = record_twice(urllib.error.URLError(ConnectionRefusedError(111, "refused")))
    assert isinstance(refused.reason, ConnectionRefusedError)


class FakeStatusError(Exception):
    """An exception with the attributes that clients of language models set."""

    def __init__(self, message: str, *, response: httpx.Response, body: object) -> None:
        super().__init__(message)
        self.message, self.body, self.request = message, body, response.request
        self.response, self.status_code = response, response.status_code
        self.request_id = response.headers.get("x-request-id")


def test_error_with_response_survives_round_trip() -> None:
    response = httpx.Response(429, headers={"x-request-id": "r1"}, request=httpx.Request("POST", ORDERS_URL))
    decoded = record_twice(FakeStatusError("slow down", response=response, body={"code": "busy"}))
    assert (decoded.status_code, decoded.request_id, decoded.body) == (429, "r1", {"code": "busy"})
    assert decoded.response.status_code == 429


class Order(pydantic.BaseModel):
    number: int
    items: list[str]

    @pydantic.field_validator("number")
    @classmethod
    def check_number(cls, number: int) -> int:
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


def validation_error_of(call: Callable[[], Any]) -> pydantic.ValidationError:
    error = exception_of(call)
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
def test_validation_error_survives_round_trip(call: Callable[[], Any]) -> None:
    error = validation_error_of(call)
    error.add_note("a note")
    for decoded in (record_twice(error), decode(encode(error))):
        assert type(decoded) is pydantic.ValidationError and decoded.__notes__ == ["a note"]
        assert decoded.title == error.title
        actual, expected = ([{**line, "ctx": None} for line in each.errors()] for each in (decoded, error))
        if call.__code__.co_consts and 14 not in call.__code__.co_consts:
            assert actual == expected
        assert [line["type"] for line in actual] == [line["type"] for line in expected]


def test_validation_error_survives_with_unrecordable_input() -> None:
    error = validation_error_of(lambda: Order(number=Unrecordable(), items=[]))  # type: ignore[arg-type]
    decoded = record_twice(error)
    assert type(decoded) is pydantic.ValidationError
    assert repr(decoded.errors()[0]["input"]) == "<unrecordable>"
    with pytest.raises(EncodeError):
        encode(error)


@step
def raise_library_error(library: str) -> None:
    raise {"httpx": make_httpx_error, "requests": make_requests_error, "aiohttp": make_aiohttp_error}[
        library
    ]()


@workflow
def catch_library_error(library: str) -> list[Any]:
    """Returns the same value in its first run and in a replay."""
    try:
        raise_library_error(library)
    except httpx.HTTPStatusError as error:
        return [error.response.status_code, hasattr(error.response, "headers")]
    except requests.HTTPError as error:
        assert error.response is not None
        return [error.response.status_code, hasattr(error.response, "headers")]
    except aiohttp.ClientResponseError as error:
        return [error.status, hasattr(error, "headers")]
    return []


@workflow
async def catch_library_error_async(library: str) -> list[Any]:
    try:
        await raise_library_error.in_thread(library)
    except (httpx.HTTPStatusError, requests.HTTPError, aiohttp.ClientResponseError) as error:
        return [type(error).__name__]
    return []


def test_workflow_catches_library_exceptions(url: str) -> None:
    with Engine(url) as engine:
        for library, status in (("httpx", 404), ("requests", 503), ("aiohttp", 429)):
            assert engine.run(catch_library_error, library) == [status, False]
            assert engine.start(catch_library_error, library).result() == [status, False]

    async def main() -> list[list[Any]]:
        async with AsyncEngine(url) as engine:
            return [
                await engine.run(catch_library_error_async, each) for each in ("httpx", "requests", "aiohttp")
            ]

    assert asyncio.run(main()) == [["HTTPStatusError"], ["HTTPError"], ["ClientResponseError"]]


@workflow
def fail_with_library_error(library: str) -> None:
    raise_library_error(library)


def test_caller_catches_library_exceptions(url: str) -> None:
    with Engine(url) as engine:
        handle = engine.start(fail_with_library_error, "httpx")
        with pytest.raises(httpx.HTTPStatusError, match="404 Not Found"):
            handle.result()
        error = engine.show(handle.workflow_id).error
        assert isinstance(error, httpx.HTTPStatusError) and error.response.status_code == 404
        with pytest.raises(requests.HTTPError, match="503 Server Error"):
            engine.run(fail_with_library_error, "requests")
