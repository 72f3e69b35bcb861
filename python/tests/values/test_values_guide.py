"""Code blocks and links of the guide to values, and readers of the extension codes."""

import re
import sys
import types

import pytest
from repository import ROOT

from stepfast._values import codes, registry

GUIDE = ROOT / "docs" / "guide" / "values.md"


def test_code_blocks_of_guide_run(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("values_guide")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    text = GUIDE.read_text(encoding="utf-8")
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    assert len(blocks) > 8
    for block in blocks:
        lines_before = text[: block.start(1)].count("\n")
        code = compile("\n" * lines_before + block.group(1), str(GUIDE), "exec")
        exec(code, vars(module))


def test_extension_code_has_one_reader() -> None:
    extension_codes = [value for name, value in vars(codes).items() if name.isupper()]
    assert len(set(extension_codes)) == len(extension_codes)
    assert {*registry.READERS, *registry.RAW_READERS} == set(extension_codes)


def test_links_of_guide_name_existing_files() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", GUIDE.read_text(encoding="utf-8")):
        assert (GUIDE.parent / link).exists(), link
