"""The reference of Python: its equality with the docstrings, and their completeness."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from repository import ROOT

import stepfast
import stepfast.values

REFERENCE = (ROOT / "docs/reference/python.md").read_text(encoding="utf-8")


def make_reference(folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(folder / "api_reference.py")]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_reference_matches_docstrings() -> None:
    process = make_reference(ROOT / "python")
    assert process.returncode == 0, process.stderr
    assert process.stdout == REFERENCE, "run `make reference`"


def test_reference_contains_every_public_name() -> None:
    headings = re.findall(r"^### (?:class |exception )?(\w+)$", REFERENCE, re.MULTILINE)
    names = {*stepfast.__all__, *stepfast.rules.__all__, *stepfast.values.__all__, "map"}
    # the functions of `stepfast.rules` are described, and `Rule` only has operators
    assert sorted(headings) == sorted(names - {"Rule"})


@pytest.mark.parametrize(
    ("file", "before", "after", "missing"),
    [
        ("_workflow/sleep.py", "        days: Days to add.\n", "", "sleep: its argument days"),
        (
            "_workflow/sleep.py",
            "        days: Days to add.\n",
            "        weeks: Weeks to add.\n",
            "Parameter 'weeks'",
        ),
        (
            "_engine/records.py",
            "        ended_at: The time of its end; None before.\n",
            "",
            "Execution: its attribute ended_at",
        ),
        ("errors.py", '    """The recorded data cannot be read."""', "    ...", "StoreCorrupt: a docstring"),
        (
            "_engine/handle.py",
            '        """The execution\'s workflow_id."""\n',
            "",
            "Handle: its attribute workflow_id",
        ),
        ("__init__.py", '    "AsyncChild",', '    "AsyncChild",\n    "_native",', "_native"),
    ],
)
def test_missing_docstring_is_reported(
    tmp_path: pathlib.Path, file: str, before: str, after: str, missing: str
) -> None:
    shutil.copy(ROOT / "python/api_reference.py", tmp_path)
    shutil.copytree(ROOT / "python/stepfast", tmp_path / "stepfast", ignore=shutil.ignore_patterns("*.so"))
    path = tmp_path / "stepfast" / file
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after), encoding="utf-8")
    process = make_reference(tmp_path)
    assert process.returncode == 1 and missing in process.stderr, process.stderr
    assert process.stdout == ""


def split_sections(text: str) -> dict[str, str]:
    """Returns the text below each heading with a name, by that heading."""
    parts = re.split(r"^#{3,4} (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_reference_describes_no_name_by_itself() -> None:
    for heading, section in split_sections(REFERENCE).items():
        anchor = re.sub(r"[^a-z0-9_ -]", "", heading.lower()).replace(" ", "-")
        own_text = section.split("\n## ")[0]
        assert f"](#{anchor})" not in own_text, f"the section of {heading} refers to itself"
        if heading.startswith("class "):
            assert "**Returns**" not in own_text, (
                f"the section of {heading} describes a class, which returns nothing"
            )
    assert "[More]" not in REFERENCE
