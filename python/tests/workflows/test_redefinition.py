"""Workflows and steps that are defined again while an engine is open, as in notebooks and by reloading."""

import asyncio
import importlib
import pathlib
import sys
import uuid

import pytest

from stepfast import AsyncEngine, Client, Engine, InvalidArgument, Workflow, WorkflowParked, workflow

FIRST = """
from stepfast import step, workflow

@step
def redefined_step() -> str:
    return "first"

@workflow
def redefined() -> str:
    return redefined_step()

@workflow
async def redefined_async() -> str:
    return "first"
"""


@pytest.fixture
def module(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """A module whose source is written anew and reloaded."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / "module_that_changes.py"

    def load(source: str):
        path.write_text(source)
        importlib.invalidate_caches()
        known = sys.modules.get(path.stem)
        return importlib.import_module(path.stem) if known is None else importlib.reload(known)

    yield load
    sys.modules.pop(path.stem, None)


def test_an_open_engine_runs_the_new_code(module, url: str) -> None:
    first = module(FIRST)
    old = first.redefined
    with Engine(url) as engine:
        assert engine.run(first.redefined) == "first"
        second = module(FIRST.replace('return "first"', 'return "second"'))
        assert engine.run(second.redefined) == "second"
        assert engine.start(second.redefined).result() == "second"
        # the name says which code it is, whoever holds on to an older one
        assert engine.run(old) == "second"


def test_an_open_engine_runs_the_new_code_on_its_loop(module, url: str) -> None:
    async def main() -> None:
        first = module(FIRST)
        async with AsyncEngine(url) as engine:
            assert await engine.run(first.redefined_async) == "first"
            second = module(FIRST.replace('return "first"', 'return "second"'))
            assert await engine.run(second.redefined_async) == "second"
            assert await (await engine.start(second.redefined_async)) == "second"
            assert await engine.run(second.redefined) == "second"

    asyncio.run(main())


def test_what_is_parked_goes_on_with_the_code_that_was_mended(module, url: str) -> None:
    source = """
import threading
from stepfast import sleep, step, workflow

asleep = threading.Event()

@step
def named_at_first() -> str:
    asleep.set()
    return "done"

@workflow
def mended() -> str:
    outcome = named_at_first()
    sleep(1.0)
    return outcome
"""
    broken = source.replace("sleep(1.0)", "breaks()").replace(
        "@workflow",
        """
def breaks():
    # the code is another one when it is replayed
    global first_step
    first_step = other_step
    sleep(1.0)

@step
def other_step() -> str:
    return "other"

first_step = named_at_first

@workflow""",
    )
    code = module(broken.replace("outcome = named_at_first()", "outcome = first_step()"))
    # a sleep that is not over at once ends in a replay
    with Engine(url, suspend_after=0.0) as engine:
        handle = engine.start(code.mended.options(workflow_id="a"))
        with pytest.raises(WorkflowParked, match="named_at_first"):
            handle.result()
        module(source)
        handle.resume()
        assert handle.result() == "done"


def test_other_kinds_of_code_want_another_engine(module, url: str) -> None:
    module(FIRST)

    async def main() -> None:
        async with AsyncEngine(url) as engine:
            second = module(FIRST.replace("def redefined()", "async def redefined()"))
            with pytest.raises(InvalidArgument, match="close the engine, and open it again"):
                await engine.run(second.redefined)
            name = f"new_{uuid.uuid4().hex}"
            new = module(FIRST + f"\n@workflow(name='{name}')\ndef new() -> str:\n    return 'new'\n")
            with pytest.raises(InvalidArgument, match="close the engine, and open it again"):
                await engine.run(new.new)
        async with AsyncEngine(url) as engine:
            assert await engine.run(new.new) == "new"

    asyncio.run(main())


def made_with(number: int) -> Workflow[[], int]:
    @workflow
    def made() -> int:
        return number

    return made


def made_with_default(number: int) -> Workflow[..., int]:
    @workflow
    def made_by_default(found: int = number) -> int:
        return found

    return made_by_default


def made_without() -> Workflow[[], int]:
    @workflow
    def made_plainly() -> int:
        return 7

    return made_plainly


def test_workflows_of_a_factory_need_names_of_their_own(url: str) -> None:
    for make in (made_with, made_with_default):
        first, second = make(1), make(2)
        with Engine(url) as engine, Client(url) as client:
            assert engine.run(second) == 2
            for start in (engine.start, engine.run, client.start):
                with pytest.raises(InvalidArgument, match="was replaced by another one") as raised:
                    start(first)
                assert "@workflow(name=" in str(raised.value) and "opened" not in str(raised.value)
            assert engine.count() == 1
            engine.run(second)
            # executions of the second one would go on with the code of a third
            with pytest.raises(InvalidArgument, match="while an engine is open"):
                make(3)
            assert engine.run(second) == 2
        assert make(4)() == 4
        url = "memory:"


def test_the_same_code_with_the_same_values_is_the_same_workflow() -> None:
    first = made_without()
    with Engine("memory:") as engine:
        second = made_without()
        assert engine.run(first) == engine.run(second) == 7


def test_workflows_of_a_factory_with_names_of_their_own() -> None:
    def named(number: int) -> Workflow[[], int]:
        @workflow(name=f"named_{number}")
        def made() -> int:
            return number

        return made

    first, second = named(1), named(2)
    with Engine("memory:") as engine:
        assert (engine.run(first), engine.run(second)) == (1, 2)
