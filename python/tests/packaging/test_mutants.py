"""The list of mutants: each can be applied to the sources as they are."""

import importlib.util
import types

import pytest
from repository import ROOT


def load_runner() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "tests/mutants/run.py")
    assert spec is not None and spec.loader is not None
    runner = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runner)
    return runner


RUNNER = load_runner()


def test_every_mutant_can_be_applied_once() -> None:
    mutants = RUNNER.read_list()
    assert len(mutants) >= 60
    assert any(mutant.is_quick for mutant in mutants)
    assert not [mutant.name for mutant in mutants if "/migrations/" in mutant.file]


def test_mutant_of_changed_source_is_an_error() -> None:
    mutant = RUNNER.read_list()[0]
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert mutant.new in mutant.mutate(text)
    for changed in (text.replace(mutant.old, ""), text + mutant.old):
        with pytest.raises(RUNNER.ListError, match=r"occurs [02] times"):
            mutant.mutate(changed)
