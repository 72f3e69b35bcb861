"""Executions with values of Python, as the program `stepfast` shows them."""

import asyncio
import dataclasses
import datetime
import decimal
import enum
import json
import pathlib
import subprocess
import uuid
import zoneinfo
from typing import Any

import pytest

from stepfast import AsyncEngine, Engine, sleep, step, workflow


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Item:
    name: str
    price: decimal.Decimal


class OutOfStock(Exception): ...


BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
VALUES: list[tuple[Any, Any]] = [
    ((1, "two"), [1, "two"]),
    ({3, 1}, [1, 3]),
    ({1: "one"}, {"1": "one"}),
    (10**30, str(10**30)),
    (-(2**64), str(-(2**64))),
    (2**200, "0x01" + "00" * 25),
    (decimal.Decimal("9.50"), "9.50"),
    (datetime.date(2026, 3, 1), "2026-03-01"),
    (datetime.datetime(2026, 3, 1, 8, tzinfo=datetime.UTC), "2026-03-01T08:00:00+00:00"),
    (datetime.datetime(2026, 3, 1, 8, tzinfo=BERLIN), "2026-03-01T08:00:00[Europe/Berlin]"),
    (uuid.UUID(int=0x12345678123456781234567812345678), "12345678-1234-5678-1234-567812345678"),
    (pathlib.PurePosixPath("/tmp/x"), "/tmp/x"),
    (Item("tea", decimal.Decimal(3)), {"Item": {"name": "tea", "price": "3"}}),
    ([Colour.RED], ["Colour.RED"]),
    (OutOfStock("tea", 2), {"OutOfStock": ["tea", 2]}),
    (b"abc", {"bytes": 3}),
    (complex(1, 2), {"extension": 6, "bytes": 19}),
]


@workflow
def returns_value(value: Any) -> Any:
    return value


def show_execution(program: pathlib.Path, store: str, workflow_id: str, *arguments: str) -> str:
    command = [program, "workflow", "show", workflow_id, "--store", store, *arguments]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_values_of_python_are_shown_as_nearest_json(program: pathlib.Path, tmp_path: pathlib.Path) -> None:
    store = f"sqlite:{tmp_path}/a.db"
    with Engine(store) as engine:
        for number, (value, _) in enumerate(VALUES):
            engine.run(returns_value.options(workflow_id=f"value-{number}"), value)
    for number, (_, expected) in enumerate(VALUES):
        record = json.loads(show_execution(program, store, f"value-{number}", "--json"))
        assert record["outcome"] == expected
        assert record["input"] == [[expected], {}]


@step(retries=1, backoff=0)
async def reserve(item: str) -> None:
    raise OutOfStock(item)


@workflow
async def orders_gold() -> None:
    await sleep(0.001)
    await reserve("gold")


async def run_failing_order(store: str) -> None:
    async with AsyncEngine(store) as engine:
        with pytest.raises(OutOfStock):
            await engine.run(orders_gold.options(workflow_id="order-7"))


def test_exceptions_are_shown_with_their_class(program: pathlib.Path, tmp_path: pathlib.Path) -> None:
    store = f"sqlite:{tmp_path}/a.db"
    asyncio.run(run_failing_order(store))
    text = show_execution(program, store, "order-7")
    # the outcome of the execution, the outcome of the step, and its first attempt
    assert text.count("OutOfStock: gold") == 3
    assert "sleep" in text and "timer" not in text
