"""What type checkers make of programs, and that the types are those of the package that is there."""

import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from repository import ROOT

TYPING = ROOT / "python" / "tests" / "typing"
EXAMPLES = ROOT / "examples" / "python"
#: Behind a wrong line stand the errors of mypy, and those of pyright.
MARK = re.compile(r"  # (?P<mypy>[a-z -]+) \| (?P<pyright>[A-Za-z ]+)$")
ENVIRONMENT = {
    **os.environ,
    "MYPYPATH": str(ROOT / "python"),
    "PYTHONPATH": str(ROOT / "python"),
    # it would look for newer versions of itself
    "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1",
}

#: Errors, as `file:line name`.
Errors = set[str]


def ran(*command: object) -> str:
    """What a module of this Python prints."""
    arguments = [sys.executable, "-m", *map(str, command)]
    ended = subprocess.run(arguments, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert ended.returncode in (0, 1), ended.stdout + ended.stderr
    return ended.stdout


def mypy() -> Errors:
    said = ran("mypy", "--config-file", "python/pyproject.toml", "--output", "json", TYPING, EXAMPLES)
    errors = (json.loads(line) for line in said.splitlines() if line.startswith("{"))
    return {
        told(error["file"], error["line"], error["code"]) for error in errors if error["severity"] == "error"
    }


def pyright() -> Errors:
    said = ran("pyright", "--project", TYPING, "--pythonpath", sys.executable, "--outputjson")
    return {
        told(error["file"], error["range"]["start"]["line"] + 1, error.get("rule", error["message"]))
        for error in json.loads(said)["generalDiagnostics"]
    }


def marked(checker: str) -> Errors:
    """The errors that the files say there are."""
    return {
        told(path, number, error)
        for path in TYPING.glob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (found := MARK.search(line)) is not None
        for error in found[checker].split()
    }


def told(file: str | pathlib.Path, line: int, error: str) -> str:
    return f"{pathlib.Path(file).name}:{line} {error}"


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_checkers_find_what_is_wrong_and_nothing_else(checker: Callable[[], Errors]) -> None:
    expected = marked(checker.__name__)
    assert len(expected) > 90, "the marks are not found"
    found = checker()
    assert {"missing": expected - found, "not expected": found - expected} == {
        "missing": set(),
        "not expected": set(),
    }


def test_every_public_type_is_told() -> None:
    asked = ["--verifytypes", "stepfast", "--ignoreexternal", "--outputjson"]
    said = json.loads(ran("pyright", "--pythonpath", sys.executable, *asked))
    symbols = said["typeCompleteness"]["symbols"]
    assert len(symbols) > 300
    untold = [each["name"] for each in symbols if each["isExported"] and not each["isTypeKnown"]]
    assert untold == []


def test_the_stub_is_that_of_the_binary() -> None:
    said = ran("mypy.stubtest", "stepfast._native", "--mypy-config-file", "python/pyproject.toml")
    assert said.startswith("Success"), said


def test_uses_run(url: str) -> None:
    command = [sys.executable, "-W", "error", TYPING / "uses.py", url]
    ended = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
