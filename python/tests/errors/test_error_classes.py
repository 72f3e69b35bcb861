"""Classes of Stepfast's exceptions, which the error codes decide."""

from __future__ import annotations

import asyncio
import time

import pytest
from repository import ROOT

import stepfast
from stepfast import (
    AsyncEngine,
    Conflict,
    DedupConflict,
    Engine,
    EngineClosed,
    Error,
    InvalidArgument,
    NotFound,
    Queue,
    QueueConflict,
    QueueFull,
    ResultTimeout,
    SchemaMismatch,
    StoreCorrupt,
    StoreUnavailable,
    Unavailable,
    WorkflowFailed,
    WorkflowIdConflict,
    WorkflowParked,
    sleep,
    step,
    workflow,
)
from stepfast._runtime.failures import (
    CLASS_BY_CODE,
    CLASS_BY_KIND,
    exception_for_error,
    recorded_exception,
)
from stepfast.values import decode_exception, encode_exception

ERRORS_MD = ROOT / "docs/reference/errors.md"


@workflow
def return_double(n: int) -> int:
    return 2 * n


@workflow
def return_after_sleep(n: int) -> int:
    sleep(0.3)
    return n


@step
def raise_timeout_error() -> None:
    raise TimeoutError("of the step")


@workflow
def fail_with_timeout_error() -> None:
    raise_timeout_error()


@workflow
async def return_after_sleep_async(n: int) -> int:
    await sleep(0.3)
    return n


@workflow
async def fail_with_timeout_error_async() -> None:
    await raise_timeout_error.in_thread()


def test_exception_classes_derive_from_classes_of_python() -> None:
    assert issubclass(InvalidArgument, ValueError)
    assert issubclass(NotFound, LookupError)
    assert issubclass(ResultTimeout, TimeoutError)
    for cls in (WorkflowIdConflict, QueueConflict, DedupConflict, QueueFull):
        assert issubclass(cls, Conflict)
    for cls in (StoreUnavailable, EngineClosed):
        assert issubclass(cls, Unavailable)
    names = [name for name in stepfast.__all__ if isinstance(getattr(stepfast, name), type)]
    classes = [getattr(stepfast, name) for name in names]
    exceptions = [
        cls for cls in classes if issubclass(cls, Exception) and cls is not stepfast.StepfastWarning
    ]
    assert all(issubclass(cls, Error) for cls in exceptions)
    for name in ("RemoteError", "EncodeError", "DecodeError"):
        assert getattr(stepfast, name) in exceptions


@pytest.mark.parametrize(
    ("kind", "code", "cls"),
    [
        ("Invalid", "SF-0001", InvalidArgument),
        ("Conflict", "SF-0003", WorkflowIdConflict),
        ("NotFound", "SF-0004", NotFound),
        ("Parked", "SF-0010", WorkflowParked),
        ("Unavailable", "SF-0011", StoreUnavailable),
        ("Unavailable", "SF-0012", EngineClosed),
        ("Invalid", "SF-0013", InvalidArgument),
        ("Corrupt", "SF-0014", SchemaMismatch),
        ("Corrupt", "SF-0015", StoreCorrupt),
        ("Unavailable", "SF-0035", StoreUnavailable),
        ("NotFound", "SF-0037", NotFound),
        ("Conflict", "SF-0038", QueueConflict),
        ("Conflict", "SF-0039", DedupConflict),
        ("Conflict", "SF-0040", QueueFull),
        ("of a later version", "SF-9999", Error),
    ],
)
def test_error_code_decides_exception_class(kind: str, code: str, cls: type[Error]) -> None:
    error = exception_for_error(kind, code, "text", None)
    assert type(error) is cls and error.code == code
    decoded = decode_exception(encode_exception(error))
    assert type(decoded) is cls and (str(decoded), vars(decoded)) == ("text", {"code": code})


def test_code_of_recorded_failure_decides_exception_class() -> None:
    for code, cls in (("SF-0039", DedupConflict), ("SF-0007", WorkflowFailed), ("SF-0037", NotFound)):
        error = recorded_exception((code, "text", [], b""))
        assert type(error) is cls and error.code == code
    # an error of the kind Failed raises WorkflowFailed, whatever code its failure has
    failed = exception_for_error("Failed", "SF-0008", "text", ("SF-0040", "text", b""))
    assert type(failed) is WorkflowFailed and failed.code == "SF-0040"


def test_error_codes_are_documented() -> None:
    text = ERRORS_MD.read_text(encoding="utf-8")
    for code in [*CLASS_BY_CODE, ResultTimeout("").code]:
        assert f"### {code}\n" in text
    for cls in {*CLASS_BY_CODE.values(), *CLASS_BY_KIND.values(), Conflict, Unavailable, ResultTimeout}:
        assert f"`{cls.__name__}`" in text


def test_closed_engine_differs_from_unreachable_database(url: str) -> None:
    with Engine(url) as engine:
        handle = engine.start(return_after_sleep, 1)
    for call in (lambda: engine.start(return_double, 1), handle.status):
        with pytest.raises(EngineClosed) as raised:
            call()
        assert raised.value.code == "SF-0012"
    with pytest.raises(StoreUnavailable) as unreachable:
        Engine("postgres://127.0.0.1:9/shop?connect_timeout=1")
    assert unreachable.value.code == "SF-0035"


def test_conflict_has_class_of_its_cause(url: str) -> None:
    with Engine(url, queues=[Queue("one", max_depth=1)]) as engine:
        engine.run(return_double.options(workflow_id="a"), 1)
        with pytest.raises(WorkflowIdConflict):
            engine.run(return_double.options(workflow_id="a"), 2)
        engine.pause_queue("one")
        engine.start(return_double.options(queue="one", dedup_id="d"), 1)
        with pytest.raises(DedupConflict):
            engine.start(return_double.options(queue="one", dedup_id="d"), 1)
        with pytest.raises(QueueFull):
            engine.start(return_double.options(queue="one"), 1)
        with pytest.raises(NotFound) as missing:
            engine.get("b")
        assert isinstance(missing.value, LookupError)
    with pytest.raises(QueueConflict):
        Engine(url, queues=[Queue("one", max_depth=2, on_conflict="reject")])


def test_result_timeout_differs_from_timeout_of_workflow(url: str) -> None:
    with Engine(url) as engine:
        handle = engine.start(return_after_sleep, 7)
        with pytest.raises(ResultTimeout, match=r"Handle\('.*'\) has not ended within 0.01 s") as timeout:
            handle.result(timeout=0.01)
        assert (timeout.value.code, isinstance(timeout.value, TimeoutError)) == ("SF-0041", True)
        with pytest.raises(ResultTimeout):
            handle.result(timeout=0)
        assert handle.result(timeout=60) == 7
        failed = engine.start(fail_with_timeout_error)
        with pytest.raises(TimeoutError, match="of the step") as raised:
            failed.result(timeout=60)
        assert not isinstance(raised.value, ResultTimeout)


def test_async_result_has_timeout(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            handle = await engine.start(return_after_sleep_async, 7)
            for timeout in (0.01, 0):
                with pytest.raises(ResultTimeout, match=r"AsyncHandle\('.*'\) has not ended within 0"):
                    await handle.result(timeout=timeout)
            assert await handle.result(timeout=60) == 7
            assert await handle.result(timeout=float("inf")) == 7
            assert await handle.result(timeout=0) == await handle == 7
            failed = await engine.start(fail_with_timeout_error_async)
            with pytest.raises(TimeoutError, match="of the step") as raised:
                await failed.result(timeout=60)
            assert not isinstance(raised.value, ResultTimeout)
            with pytest.raises(InvalidArgument, match="timeout is -1, and must be at least 0"):
                await handle.result(timeout=-1)

    asyncio.run(main())


def test_async_result_has_timeout_in_another_thread(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            handle = await engine.start(return_after_sleep_async, 7)
            loop = asyncio.get_running_loop()

            def wait_in_thread() -> int:
                with pytest.raises(ResultTimeout):
                    asyncio.run_coroutine_threadsafe(handle.result(timeout=0.01), loop).result(60)
                return asyncio.run_coroutine_threadsafe(handle.result(timeout=60), loop).result(60)

            assert await asyncio.to_thread(wait_in_thread) == 7

    asyncio.run(main())


def test_cancelled_wait_raises_no_result_timeout(url: str) -> None:
    async def main() -> None:
        async with AsyncEngine(url) as engine:
            handle = await engine.start(return_after_sleep_async, 7)
            with pytest.raises(TimeoutError) as raised:
                async with asyncio.timeout(0.01):
                    await handle.result(timeout=60)
            assert not isinstance(raised.value, ResultTimeout)
            start_time = time.monotonic()
            assert await handle == 7
            assert time.monotonic() - start_time < 30

    asyncio.run(main())
