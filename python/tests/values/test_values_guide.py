"""The guide's code runs, and its table of codes is the truth."""

import re
import sys
import types

import pytest
from repository import ROOT

from stepfast._values import codes, registry

GUIDE = ROOT / "docs" / "guide" / "values.md"


def test_the_guide_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("values_guide")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    text = GUIDE.read_text(encoding="utf-8")
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    assert len(blocks) > 8
    for block in blocks:
        lines_before = text[: block.start(1)].count("\n")
        code = compile("\n" * lines_before + block.group(1), str(GUIDE), "exec")
        exec(code, vars(module))


def test_every_code_has_a_reader() -> None:
    known = [value for name, value in vars(codes).items() if name.isupper()]
    assert len(set(known)) == len(known)
    assert {*registry.READERS, *registry.RAW_READERS} == set(known)


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", GUIDE.read_text(encoding="utf-8")):
        assert (GUIDE.parent / link).exists(), link
