"""Redefinition of workflows and steps while an engine is open, as in notebooks and by reloads."""

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
def return_version() -> str:
    return "first"

@workflow
def returns_version() -> str:
    return return_version()

@workflow
async def returns_version_async() -> str:
    return "first"
"""


@pytest.fixture
def load_module(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """Returns a function that writes a module with new source, and loads or reloads the module."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / "changing_module.py"

    def load(source: str):
        path.write_text(source)
        importlib.invalidate_caches()
        loaded = sys.modules.get(path.stem)
        return importlib.import_module(path.stem) if loaded is None else importlib.reload(loaded)

    yield load
    sys.modules.pop(path.stem, None)


def test_open_engine_runs_redefined_code(load_module, url: str) -> None:
    first = load_module(FIRST)
    first_workflow = first.returns_version
    with Engine(url) as engine:
        assert engine.run(first.returns_version) == "first"
        second = load_module(FIRST.replace('return "first"', 'return "second"'))
        assert engine.run(second.returns_version) == "second"
        assert engine.start(second.returns_version).result() == "second"
        # the name selects the code: an older object of the workflow runs the new code
        assert engine.run(first_workflow) == "second"


def test_open_async_engine_runs_redefined_code(load_module, url: str) -> None:
    async def main() -> None:
        first = load_module(FIRST)
        async with AsyncEngine(url) as engine:
            assert await engine.run(first.returns_version_async) == "first"
            second = load_module(FIRST.replace('return "first"', 'return "second"'))
            assert await engine.run(second.returns_version_async) == "second"
            assert await (await engine.start(second.returns_version_async)) == "second"
            assert await engine.run(second.returns_version) == "second"

    asyncio.run(main())


def test_parked_execution_continues_with_repaired_code(load_module, url: str) -> None:
    source = """
import threading
from stepfast import sleep, step, workflow

step_has_run = threading.Event()

@step
def first_name() -> str:
    step_has_run.set()
    return "done"

@workflow
def changes_code() -> str:
    outcome = first_name()
    sleep(1.0)
    return outcome
"""
    broken = source.replace("sleep(1.0)", "breaks()").replace(
        "@workflow",
        """
def breaks():
    # a replay finds other code
    global first_step
    first_step = other_step
    sleep(1.0)

@step
def other_step() -> str:
    return "other"

first_step = first_name

@workflow""",
    )
    code = load_module(broken.replace("outcome = first_name()", "outcome = first_step()"))
    # each sleep that takes time ends in a replay
    with Engine(url, suspend_after=0.0) as engine:
        handle = engine.start(code.changes_code.options(workflow_id="a"))
        with pytest.raises(WorkflowParked, match="first_name"):
            handle.result()
        load_module(source)
        handle.resume()
        assert handle.result() == "done"


def test_redefined_async_code_needs_reopened_engine(load_module, url: str) -> None:
    load_module(FIRST)

    async def main() -> None:
        async with AsyncEngine(url) as engine:
            second = load_module(FIRST.replace("def returns_version()", "async def returns_version()"))
            with pytest.raises(InvalidArgument, match="close the engine, and open it again"):
                await engine.run(second.returns_version)
            name = f"new_{uuid.uuid4().hex}"
            new = load_module(FIRST + f"\n@workflow(name='{name}')\ndef new() -> str:\n    return 'new'\n")
            with pytest.raises(InvalidArgument, match="close the engine, and open it again"):
                await engine.run(new.new)
        async with AsyncEngine(url) as engine:
            assert await engine.run(new.new) == "new"

    asyncio.run(main())


def define_with_closure(number: int) -> Workflow[[], int]:
    @workflow
    def returns_number() -> int:
        return number

    return returns_number


def define_with_default(number: int) -> Workflow[..., int]:
    @workflow
    def returns_default(result: int = number) -> int:
        return result

    return returns_default


def define_without_values() -> Workflow[[], int]:
    @workflow
    def returns_seven() -> int:
        return 7

    return returns_seven


def test_workflows_of_factory_need_different_names(url: str) -> None:
    for define in (define_with_closure, define_with_default):
        first, second = define(1), define(2)
        with Engine(url) as engine, Client(url) as client:
            assert engine.run(second) == 2
            for start in (engine.start, engine.run, client.start):
                with pytest.raises(InvalidArgument, match="was replaced by another one") as raised:
                    start(first)
                assert "@workflow(name=" in str(raised.value) and "opened" not in str(raised.value)
            assert engine.count() == 1
            engine.run(second)
            # executions of the second workflow would continue with the code of a third
            with pytest.raises(InvalidArgument, match="while an engine is open"):
                define(3)
            assert engine.run(second) == 2
        assert define(4)() == 4
        url = "memory:"


def test_equal_redefinition_is_same_workflow() -> None:
    first = define_without_values()
    with Engine("memory:") as engine:
        second = define_without_values()
        assert engine.run(first) == engine.run(second) == 7


def test_workflows_of_factory_run_under_different_names() -> None:
    def define(number: int) -> Workflow[[], int]:
        @workflow(name=f"returns_{number}")
        def returns_number() -> int:
            return number

        return returns_number

    first, second = define(1), define(2)
    with Engine("memory:") as engine:
        assert (engine.run(first), engine.run(second)) == (1, 2)
