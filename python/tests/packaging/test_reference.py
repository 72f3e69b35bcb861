"""The reference of Python is what the docstrings say, and they say all of it."""

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


def made(folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(folder / "api_reference.py")]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_it_is_what_the_docstrings_say() -> None:
    ended = made(ROOT / "python")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == REFERENCE, "make reference"


def test_every_name_is_in_it() -> None:
    headings = re.findall(r"^### (?:class |exception )?(\w+)$", REFERENCE, re.MULTILINE)
    assert sorted(headings) == sorted({*stepfast.__all__, *stepfast.values.__all__, "map"})


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
def test_what_is_missing_is_told(
    tmp_path: pathlib.Path, file: str, before: str, after: str, missing: str
) -> None:
    shutil.copy(ROOT / "python/api_reference.py", tmp_path)
    shutil.copytree(ROOT / "python/stepfast", tmp_path / "stepfast", ignore=shutil.ignore_patterns("*.so"))
    path = tmp_path / "stepfast" / file
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after), encoding="utf-8")
    ended = made(tmp_path)
    assert ended.returncode == 1 and missing in ended.stderr, ended.stderr
    assert ended.stdout == ""


def sections_of(text: str) -> dict[str, str]:
    """What stands below each heading that has a name, by that."""
    parts = re.split(r"^#{3,4} (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_nothing_is_described_by_itself_or_as_something_else() -> None:

    for heading, section in sections_of(REFERENCE).items():
        anchor = re.sub(r"[^a-z0-9_ -]", "", heading.lower()).replace(" ", "-")
        own = section.split("\n## ")[0]
        assert f"](#{anchor})" not in own, f"{heading} refers to itself"
        if heading.startswith("class "):
            assert "**Returns**" not in own, f"{heading} is no function"
    assert "[More]" not in REFERENCE
