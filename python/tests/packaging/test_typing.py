"""Types of the package: the reports of type checkers about programs, and the stub of the native module."""

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
#: The mark behind a wrong line: the errors of mypy, then the errors of pyright.
MARK = re.compile(r"  # (?P<mypy>[a-z -]+) \| (?P<pyright>[A-Za-z ]+)$")
ENVIRONMENT = {
    **os.environ,
    "MYPYPATH": str(ROOT / "python"),
    "PYTHONPATH": str(ROOT / "python"),
    # without this, pyright looks for newer versions of itself
    "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1",
}

#: Errors, as `file:line name`.
Errors = set[str]


def run_module(*command: object) -> str:
    """Runs a module with this Python, and returns its output."""
    arguments = [sys.executable, "-m", *map(str, command)]
    process = subprocess.run(
        arguments, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300
    )
    assert process.returncode in (0, 1), process.stdout + process.stderr
    return process.stdout


def mypy() -> Errors:
    output = run_module(
        "mypy", "--config-file", "python/pyproject.toml", "--output", "json", TYPING, EXAMPLES
    )
    errors = (json.loads(line) for line in output.splitlines() if line.startswith("{"))
    return {
        format_error(error["file"], error["line"], error["code"])
        for error in errors
        if error["severity"] == "error"
    }


def pyright() -> Errors:
    output = run_module("pyright", "--project", TYPING, "--pythonpath", sys.executable, "--outputjson")
    return {
        format_error(error["file"], error["range"]["start"]["line"] + 1, error.get("rule", error["message"]))
        for error in json.loads(output)["generalDiagnostics"]
    }


def read_marked_errors(checker: str) -> Errors:
    """Returns the errors that the marks in the files demand."""
    return {
        format_error(path, number, error)
        for path in TYPING.glob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (found := MARK.search(line)) is not None
        for error in found[checker].split()
    }


def format_error(file: str | pathlib.Path, line: int, error: str) -> str:
    return f"{pathlib.Path(file).name}:{line} {error}"


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_type_checker_reports_exactly_marked_errors(checker: Callable[[], Errors]) -> None:
    expected = read_marked_errors(checker.__name__)
    assert len(expected) > 90, "the marks in the files are not recognized"
    found = checker()
    assert {"missing": expected - found, "unexpected": found - expected} == {
        "missing": set(),
        "unexpected": set(),
    }


def test_every_public_symbol_has_known_type() -> None:
    options = ["--verifytypes", "stepfast", "--ignoreexternal", "--outputjson"]
    report = json.loads(run_module("pyright", "--pythonpath", sys.executable, *options))
    symbols = report["typeCompleteness"]["symbols"]
    assert len(symbols) > 300
    symbols_without_type = [
        symbol["name"] for symbol in symbols if symbol["isExported"] and not symbol["isTypeKnown"]
    ]
    assert symbols_without_type == []


def test_stub_matches_native_module() -> None:
    output = run_module("mypy.stubtest", "stepfast._native", "--mypy-config-file", "python/pyproject.toml")
    assert output.startswith("Success"), output


def test_typed_program_runs(url: str) -> None:
    command = [sys.executable, "-W", "error", TYPING / "uses.py", url]
    process = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
